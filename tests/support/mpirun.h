// Runs the binary on several ranks, as a user does: `mpirun -n N thimble ...`.
//
//   if (const std::string why = no_mpirun(); !why.empty()) GTEST_SKIP() << why;
//   const RunResult run = mpirun(2, {.arguments = {"train", ...}});
#pragma once

#include <string>
#include <vector>

#include "support/run_binary.h"

namespace thimble {

// Why mpirun cannot be used; empty if it can.
std::string no_mpirun();

// Runs one thread per rank; allows more ranks than cores, and root. `first` contains options of
// mpirun.
RunResult mpirun(int ranks, RunOptions options, const std::vector<std::string>& first = {});

// The same with different arguments and a different working directory for each rank.
struct RankArguments {
  std::filesystem::path folder;
  std::vector<std::string> arguments;
};
RunResult mpirun_each(const std::vector<RankArguments>& ranks, RunOptions options = {});

// The process id of a rank of the run whose command line contains `mark`; 0 if it is not running.
int process_of_rank(int rank, const std::string& mark);

}  // namespace thimble
