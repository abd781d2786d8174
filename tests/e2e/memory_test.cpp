// The memory that `train --dry-run` predicts, compared with the measured peak of a run.
#include "base/json.h"
#include "support/run_binary.h"
#include "support/temp_folder.h"

namespace thimble {
namespace {

class Memory : public testing::Test {
 protected:
  Memory() {
    const RunResult made = run_binary(
        {.arguments = {"data", "sample", "--kind", "tales", "--size", "200k", "-o", text_.string(), "-q"}});
    EXPECT_EQ(made.exit_code, 0) << made;
  }

  void SetUp() override {
    const std::string cache = (binary_path().parent_path().parent_path() / "CMakeCache.txt").string();
    const RunResult sanitized = run_program(
        "/usr/bin/env", {.arguments = {"grep", "-q", "^THIMBLE_SANITIZE:[A-Z]*=.", cache}, .folder = {}});
    if (sanitized.exit_code == 0) GTEST_SKIP() << "sanitizers need additional memory";
  }

  using Words = std::vector<std::string>;

  static Words with(Words words, const Words& more) {
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }

  static double planned_mebibytes(const Words& settings) {
    const RunResult run =
        run_binary({.arguments = with({"train", "--dry-run", "--tokenizer", "bytes", "--json"}, settings)});
    EXPECT_EQ(run.exit_code, 0) << run;
    return parse_json(run.out, "stdout").at("memory_bytes").at("total").as_double() / (1 << 20);
  }

  double measured_mebibytes(const Words& settings) {
    const std::string run_folder = (folder_ / std::to_string(++runs_)).string();
    const RunResult run = run_binary(
        {.arguments = with(
             {"train", "--data", text_.string(), "--tokenizer", "bytes", "-o", run_folder, "-q"}, settings),
         .environment = {{"OMP_WAIT_POLICY", "passive"}},
         .timeout_seconds = 600});
    EXPECT_EQ(run.exit_code, 0) << run;
    return static_cast<double>(run.peak_bytes) / (1 << 20);
  }

  // Returns the measured mebibytes.
  double expect_agreement(const Words& settings) {
    const double planned = planned_mebibytes(settings), measured = measured_mebibytes(settings);
    EXPECT_NEAR(planned / measured, 1, 0.1) << planned << " MiB planned, " << measured << " measured";
    std::printf("planned %.0f MiB, measured %.0f: %.3f\n", planned, measured, planned / measured);
    return measured;
  }

  static Words sizes(const std::string& preset, const Words& assignments,
                     const std::string& val_tokens = "2048") {
    Words words = {"--preset",       preset,    "--steps",       "2", "--max-seconds", "0",
                   "--warmup-steps", "0",       "--prime-steps", "0", "--span-tokens", "0",
                   "--val-tokens",   val_tokens};
    for (const std::string& assignment : assignments) {
      words.emplace_back("--set");
      words.push_back(assignment);
    }
    return words;
  }

  TempFolder folder_;
  std::filesystem::path text_ = folder_ / "tales.txt";
  int runs_ = 0;
};

TEST_F(Memory, ARunUsesWhatTheDryRunPredicts) {
  const Words words = sizes("llama", {"layers=6", "dim=128", "heads=2", "kv_heads=1", "mlp_hidden=256",
                                      "context=256", "batch_tokens=8192", "micro_batch=32", "dtype=f32"});
  const double plain = expect_agreement(words);
  const double checkpointed = expect_agreement(with(words, {"--checkpoint-activations"}));
  EXPECT_LT(checkpointed, 0.7 * plain);
}

TEST_F(Memory, ValidationBeforeTheFirstStepUsesTheMemoryOfTraining) {
  expect_agreement(sizes("llama",
                         {"layers=1", "dim=128", "heads=2", "kv_heads=1", "mlp_hidden=512", "context=256",
                          "batch_tokens=8192", "micro_batch=32", "dtype=f32"},
                         "8192"));
}

// Neither the weights of --init nor those of the checkpoint stay in memory beside those of the run.
TEST_F(Memory, AFineTunedAndAResumedRunUseWhatTheDryRunPredicts) {
  const std::string base = (folder_ / "base").string();
  Words words = {"train", "--data", text_.string(), "--tokenizer", "bytes", "-o", base, "-q", "--force"};
  const Words large = sizes("llama", {"layers=6", "dim=384", "heads=6", "kv_heads=2", "mlp_hidden=1536",
                                      "context=64", "batch_tokens=128", "dtype=f32"});
  ASSERT_EQ(run_binary({.arguments = with(words, large)}).exit_code, 0);
  const Words tuned = {"--init", base, "--steps", "2", "--batch-tokens", "128", "--val-tokens", "512"};
  const double planned = planned_mebibytes(tuned),
               measured = measured_mebibytes(with(tuned, {"--stop-after", "1"}));
  EXPECT_NEAR(planned / measured, 1, 0.1) << planned << " MiB planned, " << measured << " measured";
  const RunResult resumed =
      run_binary({.arguments = {"train", "--resume", (folder_ / std::to_string(runs_)).string(), "-q"},
                  .environment = {{"OMP_WAIT_POLICY", "passive"}}});
  EXPECT_EQ(resumed.exit_code, 0) << resumed;
  EXPECT_LT(static_cast<double>(resumed.peak_bytes) / (1 << 20), 1.1 * planned);
}

TEST_F(Memory, ManyRunsUseWhatTheDryRunPredictsFullTier) {
  struct Case {
    const char* preset;
    std::vector<std::string> assignments;
  };
  const Case cases[] = {
      {"llama", {"layers=4", "context=512", "batch_tokens=8192"}},
      {"golf", {"layers=4", "context=512", "batch_tokens=16384", "micro_batch=8"}},
      {"golf", {"layers=4", "context=256", "batch_tokens=8192", "micro_batch=4", "ema_decay=0.9"}},
      {"golf-plus", {"layers=3", "context=512", "batch_tokens=8192"}},
      {"microgpt", {"layers=4", "dim=256", "heads=4", "context=256", "batch_tokens=8192"}},
      {"qwen3", {"layers=3", "context=512", "batch_tokens=8192", "micro_batch=16"}},
  };
  for (const Case& c : cases)
    for (const char* dtype : {"dtype=f32", "dtype=auto"})
      for (const bool checkpoint : {false, true}) {
        Words words = with(sizes(c.preset, c.assignments), {"--set", dtype});
        if (checkpoint) words.emplace_back("--checkpoint-activations");
        SCOPED_TRACE(std::string(c.preset) + " " + dtype + (checkpoint ? ", checkpointed" : ""));
        expect_agreement(words);
      }
}

}  // namespace
}  // namespace thimble
