// Runs Python to check file formats; not installed on every machine.
//
//   if (!has_python()) GTEST_SKIP() << kNoPython;
#pragma once

#include "support/run_binary.h"

namespace thimble {

inline constexpr const char* kNoPython = "python3 is not installed";

inline RunResult run_python(std::vector<std::string> arguments, const std::filesystem::path& folder = {}) {
  arguments.insert(arguments.begin(), "python3");
  return run_program("/usr/bin/env", {.arguments = std::move(arguments), .folder = folder});
}

inline bool has_python() {
  return run_python({"--version"}).exit_code == 0;
}

}  // namespace thimble
