// `thimble train --data X` without a preset or a length chooses the settings by itself.
#include <cmath>

#include "base/files.h"
#include "base/json.h"
#include "config/toml.h"
#include "data/sample/corpus.h"
#include "support/run_binary.h"
#include "support/temp_folder.h"

namespace thimble::train_plan_test {
namespace {

class TrainPlan : public testing::Test {
 protected:
  TrainPlan() {
    std::string text;
    sample::write_corpus({.kind = sample::CorpusKind::tales, .bytes = 40'000},
                         [&](std::string_view more) { text += more; });
    folder_.write("text.txt", text);
  }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  RunResult train(std::vector<std::string> more, const std::string& data = "text.txt") const {
    std::vector<std::string> words = {"train", "--data", path(data)};
    words.insert(words.end(), more.begin(), more.end());
    return run_binary({.arguments = words});
  }

  Config config_of(const std::string& run) const {
    const std::filesystem::path file = folder_ / run / "config.toml";
    return config_from_toml(read_file(file, 1 << 20), file.string());
  }

  TempFolder folder_;
};

TEST_F(TrainPlan, ChoosesEverythingAndStoresIt) {
  const RunResult run = train({"--minutes", "0.01", "-o", path("run"), "--json"});
  ASSERT_EQ(run.exit_code, 0) << run;
  EXPECT_NE(run.err.find("choice"), std::string::npos) << run;
  const Json result = parse_json(run.out, "train --json");
  EXPECT_EQ(result.at("status").as_string(), "completed") << "the number of steps ends it, not a clock";
  const Json& expected = result.at("expected_val_bpb");
  EXPECT_LT(expected.at("low").as_double(), expected.at("mean").as_double());
  EXPECT_GT(expected.at("high").as_double(), expected.at("mean").as_double());
  const Config config = config_of("run");
  EXPECT_EQ(config.train.steps, result.at("steps").as_int());
  EXPECT_EQ(config.train.max_seconds, 0);
  EXPECT_GT(config.model.vocab_size, 300) << "a learned vocabulary";

  // Only the choice depends on the time: the stored config gives the same model.
  const RunResult again = train({"--config", path("run/config.toml"), "--tokenizer",
                                 path("run/tokenizer.json"), "-o", path("again"), "-q"});
  ASSERT_EQ(again.exit_code, 0) << again;
  const auto weights = [&](const std::string& run) {
    return read_file(folder_ / run / "last.safetensors", 1 << 30);
  };
  EXPECT_EQ(weights("run"), weights("again")) << "only the choice depends on the time";
}

TEST_F(TrainPlan, ResumesWithoutPlanningAgain) {
  ASSERT_EQ(train({"--minutes", "0.01", "--stop-after", "3", "-o", path("run"), "-q"}).exit_code, 0);
  const std::int64_t steps = config_of("run").train.steps;
  const RunResult resumed = run_binary({.arguments = {"train", "--resume", path("run"), "--json"}});
  ASSERT_EQ(resumed.exit_code, 0) << resumed;
  EXPECT_EQ(parse_json(resumed.out, "stdout").at("steps").as_int(), steps);
  EXPECT_EQ(run_binary({.arguments = {"train", "--resume", path("run"), "--minutes", "1"}}).exit_code, 2);
}

TEST_F(TrainPlan, KeepsWhatIsGiven) {
  const RunResult run = train(
      {"--minutes", "0.01", "--steps", "7", "--layers", "1", "--tokenizer", "bpe:300", "-o", path("run")});
  ASSERT_EQ(run.exit_code, 0) << run;
  const Config config = config_of("run");
  EXPECT_EQ(config.train.steps, 7);
  EXPECT_EQ(config.model.layers, 1);
  EXPECT_EQ(config.model.vocab_size, 300);
  EXPECT_NE(run.err.find("given"), std::string::npos) << run;
}

TEST_F(TrainPlan, WithAPresetMinutesSetTheLengthOnly) {
  const RunResult run = train({"--minutes", "0.01", "--preset", "quick", "-o", path("run")});
  ASSERT_EQ(run.exit_code, 0) << run;
  const Config config = config_of("run");
  EXPECT_EQ(config.model.dim, 128);
  EXPECT_EQ(config.model.dropout, 0);
  EXPECT_NE(config.train.steps, 1000);
}

TEST_F(TrainPlan, StartsFromTheChatPresetForChats) {
  std::string lines;
  for (int i = 0; i < 200; ++i)
    lines += R"([{"role": "user", "content": "What is )" + std::to_string(i) +
             R"( plus 1?"}, {"role": "assistant", "content": "It is )" + std::to_string(i + 1) + "\"}]\n";
  folder_.write("chats.jsonl", lines);
  const RunResult run = train({"--minutes", "0.01", "-o", path("run"), "-q"}, "chats.jsonl");
  ASSERT_EQ(run.exit_code, 0) << run;
  EXPECT_EQ(config_of("run").pack.bits, 6) << "a setting of the preset";
}

TEST_F(TrainPlan, SaysWhatIsWrong) {
  folder_.write("empty.txt", "");
  EXPECT_EQ(train({"-o", path("run")}, "empty.txt").exit_code, 1);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "run"));
  EXPECT_EQ(train({"--minutes", "0"}).exit_code, 2);
  EXPECT_EQ(train({"--minutes", "soon"}).exit_code, 2);
  EXPECT_EQ(train({"--minutes", "1", "--max-seconds", "5"}).exit_code, 2);
  EXPECT_EQ(train({"--heads", "7", "-o", path("run")}).exit_code, 1);
}

TEST_F(TrainPlan, DryRunPrintsThePlan) {
  const RunResult run = train({"--dry-run", "--minutes", "0.01"});
  ASSERT_EQ(run.exit_code, 0) << run;
  EXPECT_NE(run.err.find("tokenizer"), std::string::npos) << run;
  EXPECT_NE(run.out.find("dropout"), std::string::npos) << run;
}

}  // namespace
}  // namespace thimble::train_plan_test
