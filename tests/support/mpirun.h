// Runs the binary on several ranks, as a user would: `mpirun -n N thimble ...`.
//
//   if (const std::string why = no_mpirun(); !why.empty()) GTEST_SKIP() << why;
//   const RunResult run = mpirun(2, {.arguments = {"train", ...}});
#pragma once

#include <string>
#include <vector>

#include "support/run_binary.h"

namespace thimble {

// Why there is none here; empty: there is.
std::string no_mpirun();

// One thread a rank, more ranks than cores allowed; as root where we are. `first` goes before -n: mpirun's own words.
RunResult mpirun(int ranks, RunOptions options, const std::vector<std::string>& first = {});

// The same for ranks that are not told the same: each list is one rank's words, each folder where it runs.
struct RankWords {
  std::filesystem::path folder;
  std::vector<std::string> arguments;
};
RunResult mpirun_each(const std::vector<RankWords>& ranks, RunOptions options = {});

// The process of a rank of the run whose words hold `mark`; 0: not there (yet).
int process_of_rank(int rank, const std::string& mark);

}  // namespace thimble
