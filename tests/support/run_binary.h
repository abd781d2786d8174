// Runs a program as a user does and returns its exit code, signal, stdout and stderr.
//
//   const RunResult run = run_binary({.arguments = {"doctor", "--json"}});
//   EXPECT_EQ(run.exit_code, 0) << run;
//
//   run_binary({.arguments = {"doctor", "--measure"},
//               .signal = SIGINT, .signal_after_text = "measuring"});
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <iosfwd>
#include <map>
#include <string>
#include <vector>

namespace thimble {

struct RunOptions {
  std::vector<std::string> arguments = {};
  std::string input = {};                               // stdin, which is then closed
  std::filesystem::path folder = {};                    // working directory; empty: unchanged
  std::map<std::string, std::string> environment = {};  // additions; "" unsets
  double timeout_seconds = 240;          // then it is killed; long, because machines may be busy
  std::filesystem::path stdout_to = {};  // a file to write stdout to, e.g. /dev/full
  // Sent once, when all three conditions below are met. A signal that can be caught is not sent
  // before the program has a handler for it.
  int signal = 0;
  double signal_after_seconds = 0;
  std::string signal_after_text = {};  // ... on stderr
  std::function<bool()> signal_when = {};
};

struct RunResult {
  int exit_code = -1;  // -1: it did not exit normally
  int signal = 0;      // the signal that ended it
  bool timed_out = false;
  std::int64_t peak_bytes = 0;  // peak resident memory
  std::string out, err;
};

std::ostream& operator<<(std::ostream& stream, const RunResult& result);

RunResult run_program(const std::filesystem::path& program, const RunOptions& options);
RunResult run_binary(const RunOptions& options);  // the thimble that was built

std::filesystem::path binary_path();
std::filesystem::path source_folder();  // the root of the repository

}  // namespace thimble
