// Redirects a standard stream, to test commands in this process.
#pragma once

#include <unistd.h>

#include <string>
#include <vector>

#include "cli/commands.h"

namespace thimble {

class Redirected {
 public:
  Redirected(int stream, int target) : stream_(stream), before_(dup(stream)) { dup2(target, stream_); }
  ~Redirected() {
    dup2(before_, stream_);
    close(before_);
  }
  Redirected(const Redirected&) = delete;
  Redirected& operator=(const Redirected&) = delete;

 private:
  int stream_, before_;
};

// Runs a command and returns its exit code. OMP_WAIT_POLICY is set, because commands with --threads
// restart the process without it.
inline int run_here(std::vector<std::string> words) {
  setenv("GOMP_SPINCOUNT", "1000", 0);
  words.insert(words.begin(), "thimble");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  return run_thimble(static_cast<int>(words.size()), argv.data());
}

}  // namespace thimble
