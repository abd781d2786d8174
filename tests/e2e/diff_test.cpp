// `thimble diff`
#include "base/json.h"
#include "e2e/golf_files.h"

namespace thimble {
namespace {

TEST(Diff, AFileEqualsItself) {
  const std::string golden = golden_file("golf_baseline_grad");
  const RunResult run = run_binary({.arguments = {"diff", golden, golden, "--strict", "--json"}});
  EXPECT_EQ(run.exit_code, 0) << run;
  const Json report = parse_json(run.out, "stdout");
  EXPECT_TRUE(report.at("equal").as_bool());
  EXPECT_EQ(report.at("max_abs").as_double(), 0);
  EXPECT_EQ(report.at("tensors").size(), 108u);
}

TEST(Diff, ListsTheDifferencesOfTwoModels) {
  const std::string a = golden_file("golf_baseline_grad"), b = golden_file("golf_plus_grad");
  const RunResult run = run_binary({.arguments = {"diff", a, b, "--tolerance", "1e9"}});
  EXPECT_EQ(run.exit_code, 1) << run;  // shapes differ, so any tolerance fails
  EXPECT_NE(run.out.find("only in A: grad.blocks.4.attn.c_k.weight, "), std::string::npos) << run;
  EXPECT_NE(run.out.find("only in B: grad.bigram.embed.weight, "), std::string::npos) << run;
  EXPECT_NE(run.out.find("[64, 64] and [96, 96]"), std::string::npos) << run;
}

TEST(Diff, ReportsWrongUsageAndMissingFiles) {
  const std::string golden = golden_file("golf_baseline_grad");
  EXPECT_EQ(run_binary({.arguments = {"diff", golden}}).exit_code, 2);
  EXPECT_EQ(run_binary({.arguments = {"diff", golden, golden, "--tolerance", "-1"}}).exit_code, 2);
  EXPECT_EQ(run_binary({.arguments = {"diff", golden, "no-such-file"}}).exit_code, 2);
}

}  // namespace
}  // namespace thimble
