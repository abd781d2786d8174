// Defined behaviour for values that are too large, too small or not finite.
#include <cmath>

#include "base/error.h"
#include "support/message_of.h"
#include "train/tiny_run.h"

namespace thimble {
namespace {

class Numerics : public TinyRun {
 protected:
  struct Outcome {
    TrainResult result;
    std::string warnings;
  };
  static Outcome run_with_warnings(const TrainRequest& request) {
    Outcome outcome;
    const Log log(LogLevel::warning, [&](LogLevel, std::string_view line) { outcome.warnings += line; });
    outcome.result = run(request, log);
    return outcome;
  }

  void expect_finite(const std::filesystem::path& checkpoint) const {
    OpenedCheckpoint opened(checkpoint);
    for (const float weight : opened.model.weights()) ASSERT_TRUE(std::isfinite(weight));
  }
};

TEST_F(Numerics, ANanLossReportsTheStepAndKeepsTheLastCheckpoint) {
  run_until(request("run"), 2);
  OpenedCheckpoint checkpoint(folder_ / "run" / "last.safetensors");
  checkpoint.model.weights()[5] = NAN;
  checkpoint.write();
  const std::string before = last("run");
  const Outcome outcome = run_with_warnings(resumed("run"));
  EXPECT_EQ(outcome.result.status, RunStatus::diverged);
  EXPECT_EQ(outcome.result.steps, 2);
  EXPECT_NE(outcome.warnings.find("step 3: loss nan, gradient norm nan: not finite."), std::string::npos)
      << outcome.warnings;
  EXPECT_EQ(last("run"), before);
}

TEST_F(Numerics, DivergenceWithoutACheckpointReportsThat) {
  const Outcome outcome =
      run_with_warnings(request("run", {"lr=100", "matrix_lr=100", "weight_decay=100",
                                        "muon_weight_decay=100", "warmup_steps=0", "val_every=0"}));
  EXPECT_EQ(outcome.result.status, RunStatus::diverged);
  EXPECT_NE(outcome.warnings.find("not finite. There is no checkpoint yet."), std::string::npos)
      << outcome.warnings;
  EXPECT_TRUE(outcome.result.checkpoint.empty());
}

TEST_F(Numerics, InitialWeightsMustBeFinite) {
  TrainRequest bad = request("run");
  const ParamTable table(bad.config.model);
  bad.initial_weights = [&](std::span<float> weights) {
    std::ranges::fill(weights, 0.1f);
    weights[static_cast<std::size_t>(table.all()[1].offset)] = INFINITY;
  };
  EXPECT_EQ(
      message_of([&] { run(bad); }),
      fmt::format("the initial weights are not finite: {} contains NaN or infinity", table.all()[1].name));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "run"));
}

TEST_F(Numerics, ALearningRateOfZeroChangesNoWeight) {
  const TrainResult result = run(
      request("run", {"lr=0", "matrix_lr=0", "embed_lr=0", "head_lr=0", "scalar_lr=0", "checkpoint_every=1",
                      "keep=9", "steps=4", "weight_decay=0.1", "muon_weight_decay=0.1", "ema_decay=0"}));
  EXPECT_EQ(result.status, RunStatus::completed);
  const auto weights = [&](int step) {
    OpenedCheckpoint opened(folder_ / "run" / "checkpoints" / fmt::format("step-{:08}.safetensors", step));
    const auto all = opened.model.weights();
    return std::vector<float>(all.begin(), all.end());
  };
  EXPECT_EQ(weights(1), weights(4));
}

TEST_F(Numerics, ALearningRateOfTenCompletesOrDiverges) {
  for (const char* optimizer : {"muon_steps=5", "muon_steps=0"}) {
    const std::string name = optimizer;
    const Outcome outcome =
        run_with_warnings(request(name, {"lr=10", "matrix_lr=10", "warmup_steps=0", "clip=0", optimizer,
                                         "checkpoint_every=1", "steps=12"}));
    EXPECT_TRUE(outcome.result.status == RunStatus::completed || outcome.result.status == RunStatus::diverged)
        << name_of(outcome.result.status);
    EXPECT_EQ(outcome.result.status == RunStatus::diverged,
              outcome.warnings.find("checkpoint is kept.") != std::string::npos);
    ASSERT_FALSE(outcome.result.checkpoint.empty());
    expect_finite(outcome.result.checkpoint);
  }
}

TEST_F(Numerics, OneTokenOfContextTrainsAndResumes) {
  const std::vector<std::string> settings = {"context=1", "batch_tokens=16", "micro_batch=16", "steps=8"};
  EXPECT_EQ(run(request("straight", settings)).status, RunStatus::completed);
  EXPECT_EQ(run_until(request("resumed", settings), 3).status, RunStatus::stopped);
  EXPECT_EQ(run(resumed("resumed", settings)).status, RunStatus::completed);
  EXPECT_EQ(last("straight"), last("resumed"));
}

// The question is longer than a step, so one step has no targets.
TEST_F(Numerics, AStepWithoutTargetsIsAnErrorWithAHint) {
  std::string chats;
  for (int i = 0; i < 8; ++i)
    chats += R"({"messages": [{"role": "user", "content": ")" + std::string(400, 'q') + std::to_string(i) +
             R"("}, {"role": "assistant", "content": "a"}]})" + "\n";
  folder_.write("chats.jsonl", chats);
  TrainRequest questions = chat_request("run", {"context=16", "batch_tokens=32", "micro_batch=2"});
  questions.source.order = ReadOrder::sequential;
  try {
    run(questions);
    FAIL();
  } catch (const Error& error) {
    EXPECT_TRUE(std::string(error.what()).starts_with("the step that begins at position ")) << error.what();
    EXPECT_NE(error.hint().find("--loss-on all"), std::string::npos);
  }
  TrainRequest all =
      chat_request("all", {"context=16", "batch_tokens=32", "micro_batch=2", "loss_on=all", "steps=3"});
  all.source.order = ReadOrder::sequential;
  EXPECT_EQ(run(all).status, RunStatus::completed);
}

TEST_F(Numerics, EmptyDocumentsAreSkipped) {
  folder_.write("text.txt",
                "<|endoftext|>\n<|endoftext|>\n" + sample_text() + "<|endoftext|>\n<|endoftext|>\n");
  const TrainResult result = run(request("run", {"steps=4"}));
  EXPECT_EQ(result.status, RunStatus::completed);
  EXPECT_TRUE(std::isfinite(result.val_loss));
}

}  // namespace
}  // namespace thimble
