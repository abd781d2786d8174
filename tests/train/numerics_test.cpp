// Numbers that are too large, too small or none at all: defined behaviour.
#include <cmath>

#include "base/error.h"
#include "support/message_of.h"
#include "train/tiny_run.h"

namespace thimble {
namespace {

class Numerics : public TinyRun {
 protected:
  struct Told {
    TrainResult result;
    std::string warnings;
  };
  static Told run_and_listen(const TrainRequest& request) {
    Told told;
    const Log log(LogLevel::warning, [&](LogLevel, std::string_view line) { told.warnings += line; });
    told.result = run(request, log);
    return told;
  }

  void expect_finite(const std::filesystem::path& checkpoint) const {
    OpenedCheckpoint opened(checkpoint);
    for (const float weight : opened.model.weights()) ASSERT_TRUE(std::isfinite(weight));
  }
};

TEST_F(Numerics, ALossThatIsNotANumberNamesTheStepAndKeepsTheLastCheckpoint) {
  run_until(request("run"), 2);
  OpenedCheckpoint checkpoint(folder_ / "run" / "last.safetensors");
  checkpoint.model.weights()[5] = NAN;
  checkpoint.write();
  const std::string before = last("run");
  const Told told = run_and_listen(resumed("run"));
  EXPECT_EQ(told.result.status, RunStatus::diverged);
  EXPECT_EQ(told.result.steps, 2);
  EXPECT_NE(told.warnings.find("step 3: loss nan, gradient norm nan: not finite."), std::string::npos)
      << told.warnings;
  EXPECT_EQ(last("run"), before);
}

TEST_F(Numerics, WithoutACheckpointItSaysSo) {
  const Told told =
      run_and_listen(request("run", {"lr=100", "matrix_lr=100", "weight_decay=100", "muon_weight_decay=100",
                                     "warmup_steps=0", "val_every=0"}));
  EXPECT_EQ(told.result.status, RunStatus::diverged);
  EXPECT_NE(told.warnings.find("not finite. There is no checkpoint yet."), std::string::npos)
      << told.warnings;
  EXPECT_TRUE(told.result.checkpoint.empty());
}

TEST_F(Numerics, WeightsToStartFromMustBeFinite) {
  TrainRequest bad = request("run");
  const ParamTable table(bad.config.model);
  bad.initial_weights.assign(static_cast<std::size_t>(table.block_size()), 0.1f);
  bad.initial_weights[static_cast<std::size_t>(table.all()[1].offset)] = INFINITY;
  EXPECT_EQ(message_of([&] { run(bad); }),
            fmt::format("the weights to start from are not finite: {} holds NaN or "
                        "infinity",
                        table.all()[1].name));
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

TEST_F(Numerics, ALearningRateOfTenEndsOneWayOrTheOther) {
  for (const char* optimizer : {"muon_steps=5", "muon_steps=0"}) {
    const std::string name = optimizer;
    const Told told = run_and_listen(request(name, {"lr=10", "matrix_lr=10", "warmup_steps=0", "clip=0",
                                                    optimizer, "checkpoint_every=1", "steps=12"}));
    EXPECT_TRUE(told.result.status == RunStatus::completed || told.result.status == RunStatus::diverged)
        << name_of(told.result.status);
    EXPECT_EQ(told.result.status == RunStatus::diverged,
              told.warnings.find("not finite") != std::string::npos);
    ASSERT_FALSE(told.result.checkpoint.empty());
    expect_finite(told.result.checkpoint);
  }
}

TEST_F(Numerics, OneTokenOfContextTrainsAndResumes) {
  const std::vector<std::string> settings = {"context=1", "batch_tokens=16", "micro_batch=16", "steps=8"};
  EXPECT_EQ(run(request("straight", settings)).status, RunStatus::completed);
  EXPECT_EQ(run_until(request("resumed", settings), 3).status, RunStatus::stopped);
  EXPECT_EQ(run(resumed("resumed", settings)).status, RunStatus::completed);
  EXPECT_EQ(last("straight"), last("resumed"));
}

// A question longer than a whole step.
TEST_F(Numerics, AStepWithoutTargetsIsAnErrorThatSaysWhatHelps) {
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
    EXPECT_TRUE(std::string(error.what()).starts_with("no target tokens in this step, which begins at row "))
        << error.what();
    EXPECT_NE(error.hint().find("--loss-on all"), std::string::npos);
  }
  TrainRequest all =
      chat_request("all", {"context=16", "batch_tokens=32", "micro_batch=2", "loss_on=all", "steps=3"});
  all.source.order = ReadOrder::sequential;
  EXPECT_EQ(run(all).status, RunStatus::completed);
}

TEST_F(Numerics, DocumentsWithoutTextAreCountedAndLeftOut) {
  folder_.write("text.txt",
                "<|endoftext|>\n<|endoftext|>\n" + sample_text() + "<|endoftext|>\n<|endoftext|>\n");
  const TrainResult result = run(request("run", {"steps=4"}));
  EXPECT_EQ(result.status, RunStatus::completed);
  EXPECT_TRUE(std::isfinite(result.val_loss));
}

}  // namespace
}  // namespace thimble
