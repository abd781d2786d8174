// bench/soak for minutes: no failures, no wrong answers, no leaked descriptors or threads.
#include "support/run_binary.h"

namespace thimble {
namespace {

void expect_stable(const std::string& what) {
  const RunResult run = run_program(
      "/usr/bin/env", {.arguments = {"python3", (source_folder() / "bench" / "soak").string(), what,
                                     "--minutes", "3", "--bin", binary_path().parent_path().string()},
                       .timeout_seconds = 900});
  if (run.exit_code == 127) GTEST_SKIP() << "python3 is not installed";
  EXPECT_EQ(run.out.find("problem: "), std::string::npos) << run;
  // Memory is not judged in a short soak: the allocator's arena of each thread is still growing.
  for (const char* figure : {"\ndescriptors ", "\nthreads "}) {
    const std::size_t at = run.out.find(figure);
    ASSERT_NE(at, std::string::npos) << run;
    const std::string line = run.out.substr(at + 1, run.out.find('\n', at + 1) - at - 1);
    EXPECT_TRUE(line.ends_with("  flat")) << run;
  }
}

TEST(SoakFullTier, TrainingIsStable) {
  expect_stable("train");
}

TEST(SoakFullTier, AServerUnderLoadIsStable) {
  expect_stable("serve");
}

}  // namespace
}  // namespace thimble
