// bench/ablation: the table, plot and record made from runs. Figures are not checked.
#include <gtest/gtest.h>

#include <sstream>

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

  // Uses the results and runs in this test's folder.
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

  // Trains two variants with three seeds on a tiny model.
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

  void build_data() const {
    std::string text;
    for (int i = 0; i < 400; ++i) text += "line " + std::to_string(i * i) + " of a sample text.\n";
    folder_.write("text.txt", text);
    const RunResult built =
        run_binary({.arguments = {"data", "build", (folder_ / "text.txt").string(), "-t", "bytes", "-o",
                                  (folder_ / "data").string(), "--val-fraction", "0.2"}});
    ASSERT_EQ(built.exit_code, 0) << built;
  }

  std::vector<Json> lines() const {
    std::vector<Json> results;
    std::istringstream text(folder_.read("results.jsonl"));
    for (std::string line; std::getline(text, line);) results.push_back(parse_json(line, "line"));
    return results;
  }

  // A result line as written by the script, without a run.
  static std::string line(const std::string& variant, int seed, double bpb, const std::string& for_all = "") {
    return Json::object()
               .set("variant", variant)
               .set("settings", "")
               .set("for_all", for_all)
               .set("seed", seed)
               .set("steps", 3)
               .set("batch_tokens", 256)
               .set("device", "cpu")
               .set("val_bpb", bpb)
               .set("run", variant)
               .set("tokens_per_second", 1.0)
               .dump() +
           "\n";
  }

  TempFolder folder_;
};

TEST_F(Ablation, MakesATableAPlotAndARecord) {
  build_data();
  const RunResult first = train();
  ASSERT_EQ(first.exit_code, 0) << first;
  EXPECT_EQ(lines().size(), 6u) << first;
  for (const char* word : {"variant", "against golf", "tokens/s", "golf ", "leaky ", "mlp=leaky_relu2"})
    EXPECT_NE(first.out.find(word), std::string::npos) << word << "\n" << first;
  const Json line = lines().front();
  EXPECT_EQ(line.at("variant").as_string(), "golf");
  for (const char* figure : {"val_bpb", "packed_bpb", "bytes", "tokens_per_second"})
    EXPECT_GT(line.at(figure).as_double(), 0) << figure;

  const RunResult again = train({"--plot", (folder_ / "plot.svg").string()});
  EXPECT_EQ(again.out, first.out);
  EXPECT_EQ(again.err, "") << "existing results must not be run again";
  EXPECT_TRUE(folder_.read("plot.svg").starts_with("<svg "));
  EXPECT_NE(folder_.read("plot.svg").find(">leaky</text>"), std::string::npos);

  const RunResult record = ablation({"--variants", "leaky", "--record", "claim"});
  ASSERT_EQ(record.exit_code, 0) << record;
  const Json claim = parse_json(folder_.read("records/claim/record.json"), "record.json");
  EXPECT_EQ(claim.at("seeds").size(), 3u);
  EXPECT_EQ(claim.at("bytes").size(), 3u);
  std::vector<std::string> compare = {"compare", "--json"};
  for (const char* variant : {"golf", "leaky"})
    for (const Json& result : lines())
      if (result.at("variant").as_string() == variant)
        compare.push_back((folder_ / "runs" / result.at("run").as_string()).string());
  const RunResult compared = run_binary({.arguments = compare});
  ASSERT_EQ(compared.exit_code, 0) << compared;
  EXPECT_NEAR(claim.at("p").as_double(),
              parse_json(compared.out, "stdout").at("tests").as_array().at(0).at("p").as_double(), 1e-6);
  EXPECT_NE(folder_.read("records/claim/config.toml").find("mlp = \"leaky_relu2\""), std::string::npos);
  EXPECT_NE(folder_.read("records/claim/log.txt").find("seed 3"), std::string::npos);
}

TEST_F(Ablation, ReplacesAnIncompleteLastLine) {
  build_data();
  const std::vector<std::string> one = {"--variants", "golf", "--seeds", "1", "--no-pack"};
  ASSERT_EQ(train(one).exit_code, 0);
  const std::string complete = folder_.read("results.jsonl");
  folder_.write("results.jsonl", line("leaky", 7, 3.5) + complete.substr(0, complete.size() / 2));
  const RunResult again = train(one);
  ASSERT_EQ(again.exit_code, 0) << again;
  EXPECT_NE(again.err.find("the last line is incomplete"), std::string::npos) << again;
  ASSERT_EQ(lines().size(), 2u) << folder_.read("results.jsonl");
  EXPECT_EQ(lines().at(1).at("val_bpb").as_double(), parse_json(complete, "line").at("val_bpb").as_double());

  folder_.write("results.jsonl", "no JSON\n" + complete);
  const RunResult damaged = ablation({});
  EXPECT_EQ(damaged.exit_code, 1) << damaged;
  EXPECT_NE(damaged.err.find("results.jsonl:1 is not a result line"), std::string::npos) << damaged;
}

TEST_F(Ablation, KeepsTheRunsOfProtocolsApart) {
  build_data();
  const std::vector<std::string> one = {"--variants", "golf", "--seeds", "1", "--no-pack"};
  ASSERT_EQ(train(one).exit_code, 0);
  std::vector<std::string> other = one;
  other.insert(other.end(), {"--set", "dropout=0.3"});
  ASSERT_EQ(train(other).exit_code, 0);
  ASSERT_EQ(lines().size(), 2u);
  EXPECT_NE(lines().at(0).at("run").as_string(), lines().at(1).at("run").as_string());
  // Packing later uses the run of the first protocol.
  ASSERT_EQ(train({"--variants", "golf", "--seeds", "1"}).exit_code, 0);
  EXPECT_EQ(lines().at(0).at("unpacked_bpb").as_double(), lines().at(0).at("val_bpb").as_double());
}

TEST_F(Ablation, PacksARunWhileTheNextOneTrains) {
  build_data();
  const RunResult both = train({"--variants", "golf,leaky", "--seeds", "1", "--pack-beside"});
  ASSERT_EQ(both.exit_code, 0) << both;
  ASSERT_EQ(lines().size(), 2u) << both;
  for (const Json& result : lines()) EXPECT_GT(result.at("packed_bpb").as_double(), 0) << both;
}

TEST_F(Ablation, ARecordNeedsOneProtocolAndCountsEachSeedOnce) {
  const std::string golf = line("golf", 1, 3.5) + line("golf", 2, 3.6), leaky = line("leaky", 1, 3.4);
  folder_.write("results.jsonl", golf + leaky + golf);  // as after joining two files with the same lines
  folder_.write("runs/leaky/config.toml", "");
  const std::vector<std::string> claim = {"--variants", "leaky", "--record", "claim"};
  const RunResult twice = ablation(claim);
  ASSERT_EQ(twice.exit_code, 0) << twice;
  EXPECT_EQ(parse_json(folder_.read("records/claim/record.json"), "record.json").at("against_seeds").size(),
            2u);

  folder_.write("results.jsonl", golf + leaky + line("golf", 3, 9.9, "dropout=0.9"));
  const RunResult mixed = ablation(claim);
  EXPECT_EQ(mixed.exit_code, 1) << mixed;
  EXPECT_NE(mixed.err.find("mixes protocols"), std::string::npos) << mixed;
}

// golf-plus packs with a stride of 64, which improves the score of every model.
TEST_F(Ablation, MarksPackedScoresThatAreNotComparable) {
  const auto packed = [](std::string result, const std::string& figures) {
    return result.insert(result.rfind('}'), ", " + figures);
  };
  folder_.write("results.jsonl",
                packed(line("golf", 1, 3.5), R"("unpacked_bpb": 3.5, "packed_bpb": 3.51)") +
                    packed(line("golf-plus", 1, 3.4), R"("unpacked_bpb": 3.3, "packed_bpb": 3.31)"));
  const RunResult table = ablation({"--plot", (folder_ / "plot.svg").string()});
  ASSERT_EQ(table.exit_code, 0) << table;
  EXPECT_NE(table.out.find("3.5100  "), std::string::npos) << table;
  EXPECT_NE(table.out.find("3.3100*"), std::string::npos) << table;
  EXPECT_NE(folder_.read("plot.svg").find("hollow"), std::string::npos);
}

TEST_F(Ablation, ReportsFilesThatCannotBeWritten) {
  folder_.write("results.jsonl", line("golf", 1, 3.5));
  const RunResult plot = ablation({"--plot", (folder_ / "no folder" / "plot.svg").string()});
  EXPECT_EQ(plot.exit_code, 1) << plot;
  EXPECT_NE(plot.err.find("plot.svg: No such file or directory"), std::string::npos) << plot;
  EXPECT_EQ(plot.err.find("Traceback"), std::string::npos) << plot;
}

TEST_F(Ablation, RejectsUnknownVariants) {
  const RunResult run = ablation({"--variants", "leeky"});
  EXPECT_EQ(run.exit_code, 2) << run;
  EXPECT_NE(run.err.find("unknown variant 'leeky'"), std::string::npos) << run;
}

}  // namespace
}  // namespace thimble
