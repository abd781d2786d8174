// `thimble import`, `trace --grad` and `diff` on the published golf models, from file to gradients.
#include "base/json.h"
#include "e2e/golf_files.h"

namespace thimble {
namespace {

class GoldenGolf : public testing::TestWithParam<const char*> {};

TEST_P(GoldenGolf, TraceEqualsTheOriginal) {
  const TempFolder folder;
  const std::string model = (folder / "model.safetensors").string(), golden = golden_file(GetParam());
  const std::string trace = (folder / "trace.safetensors").string();
  const RunResult imported = import_golden(GetParam(), model);
  ASSERT_EQ(imported.exit_code, 0) << imported;

  const RunResult traced =
      run_binary({.arguments = {"trace", model, "--tokens", golden, "--grad", "-o", trace, "--json"}});
  ASSERT_EQ(traced.exit_code, 0) << traced;
  EXPECT_EQ(traced.err, "");
  const Json summary = parse_json(traced.out, "stdout");
  EXPECT_EQ(summary.at("scored").as_int(), 96);

  const RunResult compared =
      run_binary({.arguments = {"diff", trace, golden, "--tolerance", "2e-4", "--json"}});
  EXPECT_EQ(compared.exit_code, 0) << compared;
  const Json report = parse_json(compared.out, "stdout");
  EXPECT_TRUE(report.at("equal").as_bool());
  EXPECT_EQ(report.at("only_a").size(), 0u);
  int gradients = 0;
  for (const Json& tensor : report.at("tensors").as_array()) {
    const std::string& name = tensor.at("name").as_string();
    EXPECT_GE(tensor.at("cosine").as_double(), 0.999999) << name;
    EXPECT_LE(tensor.at("relative_l2").as_double(), name == "loss" ? 1e-5 : 1e-4) << name;
    gradients += name.starts_with("grad.");
  }
  EXPECT_EQ(gradients, std::string(GetParam()) == "golf_baseline_grad" ? 52 : 46);
}

INSTANTIATE_TEST_SUITE_P(Trace, GoldenGolf, testing::Values("golf_baseline_grad", "golf_plus_grad"));

// With the wrong direction of RoPE the comparison must fail.
TEST(Trace, DetectsADifferentSetting) {
  const TempFolder folder;
  const std::string model = (folder / "m").string(), trace = (folder / "t").string();
  const std::string golden = golden_file("golf_baseline_grad");
  ASSERT_EQ(import_golden("golf_baseline_grad", model, {"--prefix", "param.", "--set", "rope_direction=1"})
                .exit_code,
            0);
  ASSERT_EQ(run_binary({.arguments = {"trace", model, "--tokens", golden, "-o", trace}}).exit_code, 0);
  const RunResult compared = run_binary({.arguments = {"diff", trace, golden, "--tolerance", "2e-4"}});
  EXPECT_EQ(compared.exit_code, 1) << compared;
  EXPECT_NE(compared.out.find("\ndifferent: 2 tensors"), std::string::npos) << compared;
}

TEST(Trace, RejectsAnExistingOutputFirst) {
  const TempFolder folder;
  const std::string trace = folder.write("trace", "mine").string();
  const RunResult run =
      run_binary({.arguments = {"trace", "no-such-model", "--tokens", "none", "-o", trace}});
  EXPECT_EQ(run.exit_code, 1) << run;
  EXPECT_TRUE(run.err.starts_with("error: " + trace + " already exists\nhint: ")) << run;
  EXPECT_EQ(folder.read("trace"), "mine");
}

TEST(Trace, LeavesNoFilesOnFailure) {
  const TempFolder folder;
  ASSERT_EQ(import_golden("golf_baseline_grad", (folder / "m").string()).exit_code, 0);
  const RunResult run =
      run_binary({.arguments = {"trace", "m", "--tokens", "m", "-o", "t"}, .folder = folder.path()});
  EXPECT_EQ(run.exit_code, 1) << run;
  EXPECT_TRUE(run.err.starts_with("error: m: expected a tensor \"input\", not found among 53 tensors"))
      << run;
  EXPECT_EQ(folder.files(), std::vector<std::string>{"m"});
}

}  // namespace
}  // namespace thimble
