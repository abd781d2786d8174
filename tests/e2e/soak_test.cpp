// bench/soak, for minutes instead of an hour: nothing fails, nothing is answered wrongly, no descriptor or thread is left behind.
#include "support/run_binary.h"

namespace thimble {
namespace {

void expect_to_stay_as_it_is(const std::string& what) {
  const RunResult run = run_program(
      "/usr/bin/env", {.arguments = {"python3", (source_folder() / "bench" / "soak").string(), what,
                                     "--minutes", "3", "--bin", binary_path().parent_path().string()},
                       .timeout_seconds = 900});
  if (run.exit_code == 127) GTEST_SKIP() << "python3 is not installed";
  EXPECT_EQ(run.out.find("problem: "), std::string::npos) << run;
  // Memory is not judged so early: each thread's arena of the allocator is still growing to its size.
  for (const char* figure : {"\ndescriptors ", "\nthreads "}) {
    const std::size_t at = run.out.find(figure);
    ASSERT_NE(at, std::string::npos) << run;
    const std::string line = run.out.substr(at + 1, run.out.find('\n', at + 1) - at - 1);
    EXPECT_TRUE(line.ends_with("  flat")) << run;
  }
}

TEST(SoakFullTier, TrainingStaysAsItIs) {
  expect_to_stay_as_it_is("train");
}

TEST(SoakFullTier, AServerUnderLoadStaysAsItIs) {
  expect_to_stay_as_it_is("serve");
}

}  // namespace
}  // namespace thimble
