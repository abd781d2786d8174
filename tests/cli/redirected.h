// A standard stream that leads elsewhere for a while, and a thimble in this process that speaks into it.
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

// The exit code. Commands that take --threads start themselves anew where OpenMP was not told how to wait: it is told.
inline int run_here(std::vector<std::string> words) {
  setenv("GOMP_SPINCOUNT", "1000", 0);
  words.insert(words.begin(), "thimble");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  return run_thimble(static_cast<int>(words.size()), argv.data());
}

}  // namespace thimble
