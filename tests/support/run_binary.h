// Runs a program as a user would and says all that came of it: exit code, signal, stdout, stderr.
//
//   const RunResult run = run_binary({.arguments = {"doctor", "--json"}});
//   EXPECT_EQ(run.exit_code, 0) << run;
//
//   run_binary({.arguments = {"doctor", "--measure"}, .signal = SIGINT, .signal_after_text = "measuring"});
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
  std::string input = {};                               // stdin; then it is closed
  std::filesystem::path folder = {};                    // where it runs; empty: here
  std::map<std::string, std::string> environment = {};  // set on top of ours; "" unsets
  double timeout_seconds = 240;                         // then it is killed; others may keep the machine busy
  std::filesystem::path stdout_to = {};                 // instead of catching it, e.g. /dev/full
  // Sent once, when all three conditions below are met; one that can be caught not before the program catches it.
  int signal = 0;
  double signal_after_seconds = 0;
  std::string signal_after_text = {};  // ... on stderr
  std::function<bool()> signal_when = {};
};

struct RunResult {
  int exit_code = -1;  // -1: it did not exit by itself
  int signal = 0;      // that ended it
  bool timed_out = false;
  std::int64_t peak_bytes = 0;  // of memory that was resident at once
  std::string out, err;
};

std::ostream& operator<<(std::ostream& stream, const RunResult& result);

RunResult run_program(const std::filesystem::path& program, const RunOptions& options);
RunResult run_binary(const RunOptions& options);  // the thimble that was just built

std::filesystem::path binary_path();
std::filesystem::path source_folder();  // the root of the repository

}  // namespace thimble
