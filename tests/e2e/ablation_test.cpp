// bench/ablation: that runs add up to a table, a plot and a record. Figures are not looked at.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/json.h"
#include "support/run_binary.h"
#include "support/temp_folder.h"

namespace thimble {
namespace {

class Ablation : public testing::Test {
 protected:
  void SetUp() override {
    if (run_program("/bin/sh", {.arguments = {"-c", "python3 --version >/dev/null 2>&1"}}).exit_code != 0)
      GTEST_SKIP() << "python3 is not installed";
  }

  // With the results and runs of this test's folder.
  RunResult ablation(const std::vector<std::string>& more) const {
    std::vector<std::string> arguments = {"python3",   (source_folder() / "bench" / "ablation").string(),
                                          "--bin",     binary_path().parent_path().string(),
                                          "--results", (folder_ / "results.jsonl").string(),
                                          "--runs",    (folder_ / "runs").string(),
                                          "--records", (folder_ / "records").string(),
                                          "--steps",   "3",
                                          "--device",  "cpu"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_program(
        "/usr/bin/env",
        {.arguments = arguments, .environment = {{"OMP_WAIT_POLICY", "passive"}}, .timeout_seconds = 300});
  }

  // Two variants and three seeds of a model that trains in a blink.
  RunResult train(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> arguments = {"--data",         (folder_ / "data").string(),
                                          "--variants",     "golf,leaky",
                                          "--seeds",        "1,2,3",
                                          "--batch-tokens", "256"};
    for (const char* setting :
         {"layers=2", "dim=32", "heads=2", "kv_heads=1", "context=32", "prime_steps=0", "mlp_hidden=32"})
      arguments.insert(arguments.end(), {"--set", setting});
    arguments.insert(arguments.end(), more.begin(), more.end());
    return ablation(arguments);
  }

  std::size_t results() const {
    const std::string text = folder_.read("results.jsonl");
    return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
  }

  TempFolder folder_;
};

TEST_F(Ablation, RunsAddUpToATableAPlotAndARecord) {
  std::string text;
  for (int i = 0; i < 400; ++i) text += "line " + std::to_string(i * i) + " of a text that says little.\n";
  folder_.write("text.txt", text);
  const RunResult built =
      run_binary({.arguments = {"data", "build", (folder_ / "text.txt").string(), "-t", "bytes", "-o",
                                (folder_ / "data").string(), "--val-fraction", "0.2"}});
  ASSERT_EQ(built.exit_code, 0) << built;

  const RunResult first = train();
  ASSERT_EQ(first.exit_code, 0) << first;
  EXPECT_EQ(results(), 6u) << first;
  for (const char* word : {"variant", "against golf", "tokens/s", "golf ", "leaky ", "mlp=leaky_relu2"})
    EXPECT_NE(first.out.find(word), std::string::npos) << word << "\n" << first;
  const Json line =
      parse_json(folder_.read("results.jsonl").substr(0, folder_.read("results.jsonl").find('\n')), "line");
  EXPECT_EQ(line.at("variant").as_string(), "golf");
  for (const char* figure : {"val_bpb", "packed_bpb", "bytes", "tokens_per_second"})
    EXPECT_GT(line.at(figure).as_double(), 0) << figure;

  const RunResult again = train({"--plot", (folder_ / "plot.svg").string()});
  EXPECT_EQ(again.out, first.out);
  EXPECT_EQ(again.err, "") << "what is there is not run again";
  EXPECT_TRUE(folder_.read("plot.svg").starts_with("<svg "));
  EXPECT_NE(folder_.read("plot.svg").find(">leaky</text>"), std::string::npos);

  const RunResult record = ablation({"--variants", "leaky", "--record", "claim"});
  ASSERT_EQ(record.exit_code, 0) << record;
  const Json claim = parse_json(folder_.read("records/claim/record.json"), "record.json");
  EXPECT_EQ(claim.at("seeds").size(), 3u);
  EXPECT_EQ(claim.at("bytes").size(), 3u);
  std::vector<std::string> compare = {"compare", "--json"};
  for (const char* variant : {"golf", "leaky"})
    for (const char* seed : {"1", "2", "3"})
      compare.push_back((folder_ / "runs" / fmt::format("{}-3-{}", variant, seed)).string());
  const RunResult compared = run_binary({.arguments = compare});
  ASSERT_EQ(compared.exit_code, 0) << compared;
  EXPECT_NEAR(claim.at("p").as_double(),
              parse_json(compared.out, "stdout").at("tests").as_array().at(0).at("p").as_double(), 1e-6);
  EXPECT_NE(folder_.read("records/claim/config.toml").find("mlp = \"leaky_relu2\""), std::string::npos);
  EXPECT_NE(folder_.read("records/claim/log.txt").find("seed 3"), std::string::npos);
}

TEST_F(Ablation, RefusesAVariantThatIsNotThere) {
  const RunResult run = ablation({"--variants", "leeky"});
  EXPECT_EQ(run.exit_code, 2) << run;
  EXPECT_NE(run.err.find("there is no variant 'leeky'"), std::string::npos) << run;
}

}  // namespace
}  // namespace thimble
