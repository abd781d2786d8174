#include "train/checkpoint.h"

#include <csignal>
#include <fstream>
#include <functional>

#include "base/error.h"
#include "base/json.h"
#include "support/message_of.h"
#include "train/tiny_run.h"

namespace thimble {
namespace {

class Resume : public TinyRun {};

struct Feature {
  const char* name;
  std::vector<std::string> settings;
};

class ResumeWith : public TinyRun, public testing::WithParamInterface<Feature> {};

TEST_P(ResumeWith, StoppingAtStep17AndResumingGivesTheSameBytes) {
  std::vector<std::string> settings = GetParam().settings;
  settings.push_back("steps=40");
  EXPECT_EQ(run(request("straight", settings)).status, RunStatus::completed);
  EXPECT_EQ(run_until(request("resumed", settings), 17).status, RunStatus::stopped);
  EXPECT_EQ(run(resumed("resumed", settings)).status, RunStatus::completed);
  EXPECT_EQ(last("straight"), last("resumed"));
}

INSTANTIATE_TEST_SUITE_P(
    Resume, ResumeWith,
    testing::Values(
        Feature{"f32", {"dtype=f32", "muon_dtype=f32"}}, Feature{"bf16", {"dtype=bf16", "muon_dtype=bf16"}},
        Feature{"muon", {"muon_steps=5"}}, Feature{"adam", {"muon_steps=0", "weight_decay=0.1"}},
        Feature{"muon_variants", {"muon_coefficients=polar", "muon_row_norm=true", "muon_weight_decay=0.05"}},
        Feature{"swa", {"swa_start=0.9", "swa_every=2"}}, Feature{"ema", {"ema_decay=0.9"}},
        Feature{"qat", {"qat_bits=6", "qat_start=0.5"}}, Feature{"dropout", {"dropout=0.2"}},
        Feature{"accumulation", {"batch_tokens=256", "micro_batch=3"}}, Feature{"clip", {"clip=0.5"}},
        Feature{"loop_to_come", {"loop_last=1", "loop_count=1", "loop_start=0.5"}},
        Feature{"loop_under_way", {"loop_last=1", "loop_count=1", "loop_start=12"}},
        Feature{"patience", {"patience=50", "min_delta=0.01"}},
        Feature{"all",
                {"swa_start=0.9", "swa_every=3", "qat_bits=5", "dropout=0.1", "clip=0.3", "micro_batch=1"}}),
    [](const auto& info) { return std::string(info.param.name); });

TEST_F(Resume, CheckpointsStoreWhetherTheLoopIsOn) {
  const std::vector<std::string> settings = {"loop_last=1", "loop_count=1", "loop_start=10", "prime_steps=3"};
  const auto loops = [&] {
    return read_checkpoint_head(SafetensorsFile::open(folder_ / "run/last.safetensors")).config.state.loop_on;
  };
  EXPECT_EQ(run_until(request("run", settings), 10).status, RunStatus::stopped);
  EXPECT_FALSE(loops()) << "step 11 is the first with the loop";
  EXPECT_EQ(run_until(resumed("run", settings), 1).status, RunStatus::stopped);
  EXPECT_TRUE(loops());
  EXPECT_EQ(run(resumed("run", settings)).status, RunStatus::completed);
  EXPECT_TRUE(loops());
  std::vector<std::string> wrong = settings;
  wrong.push_back("loop_on=false");
  EXPECT_EQ(message_of([&] { run(request("wrong", wrong)); }),
            "loop_on cannot be set to false: training sets it");
}

TEST_F(Resume, EveryReadOrderAndChatsContinueAtTheSamePosition) {
  const std::vector<std::string> settings = {"steps=40", "context=32", "batch_tokens=128"};
  const auto expect_same = [&](const std::string& name,
                               const std::function<TrainRequest(std::string)>& make) {
    run(make(name + "-straight"));
    run_until(make(name + "-resumed"), 17);
    run(again(make(name + "-resumed")));
    EXPECT_EQ(last(name + "-straight"), last(name + "-resumed")) << name;
  };
  for (const ReadOrder order :
       {ReadOrder::sequential, ReadOrder::golf, ReadOrder::golf_mlx, ReadOrder::packed})
    expect_same(std::string(name_of(order)), [&](const std::string& run) {
      TrainRequest made = request(run, settings);
      made.source.order = order;
      return made;
    });
  expect_same("chats", [&](const std::string& run) { return chat_request(run, settings); });
}

TEST_F(Resume, MetricsEqualThoseOfAnUninterruptedRun) {
  const auto losses = [&](const std::string& run) {
    std::vector<double> values;
    std::ifstream file(folder_ / run / "metrics.jsonl");
    for (std::string line; std::getline(file, line);) {
      const Json event = parse_json(line, "line");
      const std::string kind = event.at("event").as_string();
      if (kind == "start" || kind == "resume") continue;
      values.push_back(event.at(kind == "step" ? "loss" : "val_loss").as_double());
    }
    return values;
  };
  const TrainResult straight = run(request("straight"));
  run_until(request("resumed", {"checkpoint_every=5", "keep=9"}), 9);
  // Simulates a kill: the checkpoint is older than the metrics, and their last line is incomplete.
  std::filesystem::remove(folder_ / "resumed" / "last.safetensors");
  std::filesystem::create_hard_link(folder_ / "resumed" / "checkpoints" / "step-00000005.safetensors",
                                    folder_ / "resumed" / "last.safetensors");
  std::ofstream(folder_ / "resumed" / "metrics.jsonl", std::ios::app) << "{\"event\": \"st";
  const TrainResult again = run(resumed("resumed", {"checkpoint_every=5", "keep=9"}));
  EXPECT_EQ(losses("resumed"), losses("straight"));
  EXPECT_EQ(again.train_loss, straight.train_loss) << "smoothed over steps of both calls";
}

TEST_F(Resume, AnInterruptedValidationIsRepeated) {
  run(request("straight"));
  run_until(request("resumed"), 6);  // a step with a validation
  // The state after Ctrl-C during that validation.
  OpenedCheckpoint checkpoint(folder_ / "resumed" / "last.safetensors");
  TrainState& state = checkpoint.head.state;
  state.validation_due = true;
  state.best_step = -1;
  state.best_val_loss = 0;
  state.patience_loss = state.untrained_val_loss.value();
  checkpoint.write();
  EXPECT_EQ(run(resumed("resumed")).status, RunStatus::completed);
  EXPECT_EQ(last("straight"), last("resumed"));
  // The metrics already contained this validation; it must not appear twice.
  const std::string metrics = folder_.read("resumed/metrics.jsonl"),
                    line = R"("event":"validation","step":6)";
  EXPECT_NE(metrics.find(line), std::string::npos);
  EXPECT_EQ(metrics.find(line), metrics.rfind(line)) << "the event appears twice";
}

TEST_F(Resume, AfterAnInterruptBeforeTheFirstStepStartsWithTheValidation) {
  run(request("straight"));
  const auto of_shards = [&](TrainRequest request) {
    request.source.data = folder_ / "straight" / "data";
    return request;
  };
  {
    const Interrupt interrupt;
    std::raise(SIGINT);
    const TrainResult result =
        train(of_shards(request("resumed")), Log::nowhere(), ProgressOutput::nowhere(), interrupt);
    EXPECT_EQ(result.status, RunStatus::interrupted);
    EXPECT_EQ(result.steps, 0);
  }
  EXPECT_EQ(run(of_shards(resumed("resumed"))).status, RunStatus::completed);
  EXPECT_EQ(last("straight"), last("resumed"));
  EXPECT_NE(folder_.read("resumed/metrics.jsonl").find(R"("event":"validation","step":0)"),
            std::string::npos);
}

TEST_F(Resume, AfterAnInterruptDuringPrimingStartsWithTheValidation) {
  run(request("straight", {"prime_steps=2"}));
  const auto of_shards = [&](TrainRequest request) {
    request.source.data = folder_ / "straight" / "data";
    return request;
  };
  {
    const Interrupt interrupt;
    std::raise(SIGINT);
    const TrainResult result = train(of_shards(request("resumed", {"prime_steps=2"})), Log::nowhere(),
                                     ProgressOutput::nowhere(), interrupt);
    EXPECT_EQ(result.status, RunStatus::interrupted);
    EXPECT_EQ(result.steps, 0);
  }
  EXPECT_EQ(run(of_shards(resumed("resumed", {"prime_steps=2"}))).status, RunStatus::completed);
  EXPECT_EQ(last("straight"), last("resumed"));
  EXPECT_NE(folder_.read("resumed/metrics.jsonl").find(R"("event":"validation","step":0)"),
            std::string::npos);
}

// Raises SIGUSR1 after the first priming pass, and calls a function after the second.
class SavesWhilePriming final : public TrainObserver {
 public:
  explicit SavesWhilePriming(std::function<void()> after) : after_(std::move(after)) {}
  void primed(std::int64_t step, std::int64_t) override {
    if (step == 1) std::raise(SIGUSR1);
    if (step == 2) after_();
  }
  void step(const StepReport&) override {}

 private:
  std::function<void()> after_;
};

TEST_F(Resume, ACheckpointSavedDuringPrimingStartsWithTheValidation) {
  const std::vector<std::string> settings = {"prime_steps=2"};
  SavesWhilePriming observer([&] {
    std::filesystem::copy(folder_ / "straight", folder_ / "copy", std::filesystem::copy_options::recursive);
  });
  TrainRequest saving = request("straight", settings);
  saving.observer = &observer;
  const Interrupt interrupt;
  const SaveSignal save_now;
  train(saving, Log::nowhere(), ProgressOutput::nowhere(), interrupt, &save_now);
  ASSERT_EQ(OpenedCheckpoint(folder_ / "copy/last.safetensors").head.state.step, 0);
  run(resumed("copy", settings));
  EXPECT_EQ(last("straight"), last("copy"));
  EXPECT_NE(folder_.read("copy/metrics.jsonl").find(R"("event":"validation","step":0)"), std::string::npos);
}

TEST_F(Resume, FromANamedCheckpointNeedsForceToDiscardNewerOnes) {
  const std::vector<std::string> settings = {"checkpoint_every=2", "val_every=2", "keep=9"};
  run(request("straight", settings));
  run_until(request("run", settings), 6);
  TrainRequest named = resumed("run", settings);
  named.checkpoint = folder_ / "run/checkpoints/step-00000004.safetensors";
  const std::string message = message_of([&] { run(named); });
  EXPECT_NE(message.find("is of step 4, but the run has a checkpoint of step 6"), std::string::npos)
      << message;
  EXPECT_TRUE(std::filesystem::exists(folder_ / "run/checkpoints/step-00000006.safetensors"));
  named.force = true;
  named.stop_after = 1;
  EXPECT_EQ(run(named).steps, 5);
  EXPECT_EQ(OpenedCheckpoint(folder_ / "run/best.safetensors").head.state.step, 4) << "step 6 is discarded";
  EXPECT_FALSE(std::filesystem::exists(folder_ / "run/checkpoints/step-00000006.safetensors"));
  named.checkpoint = folder_ / "run/checkpoints/step-00000005.safetensors";  // now the newest
  named.force = false;
  named.stop_after = 0;
  EXPECT_EQ(run(named).status, RunStatus::completed);
  EXPECT_EQ(last("straight"), last("run"));
}

TEST_F(Resume, EditsOfConfigTomlAreReportedAndHaveNoEffect) {
  run_until(request("run"), 3);
  const std::string written = folder_.read("run/config.toml");
  std::string edited = written;
  edited.replace(edited.find("\nsteps = 20"), 11, "\nsteps = 77");
  std::string logged;
  const Log log(LogLevel::warning,
                [&](LogLevel, std::string_view line) { logged += std::string(line) + "\n"; });
  const auto resume_with = [&](const std::string& config, const std::vector<std::string>& settings = {}) {
    folder_.write("run/config.toml", config);
    TrainRequest next = resumed("run", settings);
    next.stop_after = 1;
    logged.clear();
    run(next, log);
  };
  resume_with(edited);
  EXPECT_NE(logged.find("steps is 77 in the file and 20 in the run"), std::string::npos) << logged;
  EXPECT_NE(logged.find("--steps 77"), std::string::npos) << logged;
  EXPECT_EQ(folder_.read("run/config.toml"), written);
  resume_with("steps = [", {});
  EXPECT_NE(logged.find("config.toml"), std::string::npos) << logged;
  EXPECT_EQ(folder_.read("run/config.toml"), written);
  resume_with(written);
  EXPECT_EQ(logged, "");
  resume_with(edited, {"steps=77"});  // the same change was requested
  EXPECT_EQ(logged, "");
}

TEST_F(Resume, OtherThreadsAreReportedAlsoAfterAKill) {
  run_until(request("run"), 3);
  std::filesystem::remove(folder_ / "run/run.json");  // not yet written when the process is killed
  std::string metrics = folder_.read("run/metrics.jsonl");
  const std::size_t at = metrics.find(R"("threads":)") + 10;
  metrics.replace(at, metrics.find(',', at) - at, "999");
  folder_.write("run/metrics.jsonl", metrics);
  std::string logged;
  const Log log(LogLevel::info, [&](LogLevel, std::string_view line) { logged += std::string(line) + "\n"; });
  TrainRequest next = resumed("run");
  next.stop_after = 1;
  run(next, log);
  EXPECT_NE(logged.find("was trained with 999 threads at"), std::string::npos) << logged;
  logged.clear();
  run(next, log);
  EXPECT_EQ(logged.find("threads at"), std::string::npos) << logged;
}

TEST_F(Resume, UsesTheNewestStepFileIfLastIsMissing) {
  run(request("straight"));
  run_until(request("resumed"), 3);
  std::filesystem::remove(folder_ / "resumed" / "last.safetensors");
  EXPECT_EQ(run(resumed("resumed")).status, RunStatus::completed);
  EXPECT_EQ(last("straight"), last("resumed"));
}

TEST_F(Resume, RemovesCheckpointsLaterThanTheResumedOne) {
  run_until(request("run", {"keep=1"}), 3);
  std::filesystem::copy_file(folder_ / "run" / "last.safetensors",
                             folder_ / "run" / "checkpoints" / "step-00000015.safetensors");
  const TrainResult result = run_until(resumed("run", {"keep=1", "checkpoint_every=2", "val_every=0"}), 1);
  EXPECT_TRUE(std::filesystem::exists(result.checkpoint)) << result.checkpoint;
  EXPECT_FALSE(std::filesystem::exists(folder_ / "run" / "checkpoints" / "step-00000015.safetensors"));
}

TEST_F(Resume, RejectsACompleteRunAndRemovesTemporaryFiles) {
  run(request("run", {"steps=6"}));
  folder_.write("run/.config.toml.tmp", "half");
  folder_.write("run/checkpoints/.step-00000006.safetensors.tmp", "half");
  const std::string before = last("run");
  EXPECT_NE(message_of([&] { run(resumed("run", {"steps=6"})); }).find("is complete: 6 of 6 steps"),
            std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "run/.config.toml.tmp"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "run/checkpoints/.step-00000006.safetensors.tmp"));
  EXPECT_EQ(last("run"), before);
}

TEST_F(Resume, RejectsOtherDataAndKeepsTheRunsShards) {
  run(request("straight"));
  run_until(request("run"), 3);
  folder_.write("text.txt", sample_text() + "more");
  TrainRequest named = resumed("run");
  named.source_was_named = true;
  EXPECT_THROW(run(named), Error);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "run" / "data.named"));
  EXPECT_EQ(run_until(resumed("run"), 4).status, RunStatus::stopped);
  folder_.write("text.txt", sample_text());
  EXPECT_EQ(run(named).status, RunStatus::completed);
  EXPECT_EQ(last("straight"), last("run"));
}

TEST_F(Resume, DoesNotNeedTheOriginalText) {
  run(request("straight"));
  run_until(request("run"), 3);
  std::filesystem::remove(folder_ / "text.txt");
  EXPECT_EQ(run(resumed("run")).status, RunStatus::completed);
  EXPECT_EQ(last("straight"), last("run"));
}

TEST_F(Resume, MissingDataIsAClearError) {
  run_until(request("run"), 3);
  std::filesystem::remove(folder_ / "text.txt");
  std::filesystem::remove_all(folder_ / "run" / "data");
  const std::string before = last("run");
  try {
    run(resumed("run"));
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("text.txt"), std::string::npos) << error.what();
    EXPECT_EQ(error.hint(), "pass the new path of the run's data with --data");
  }
  EXPECT_EQ(last("run"), before);
}

TEST_F(Resume, ALargerNumberOfStepsReportsTheChangeOfTheLearningRate) {
  run(request("run"));
  std::string logged;
  const Log log(LogLevel::info, [&](LogLevel, std::string_view line) { logged += std::string(line) + "\n"; });
  EXPECT_EQ(run(resumed("run", {"steps=40"}), log).status, RunStatus::completed);
  EXPECT_NE(logged.find("steps: 20 -> 40"), std::string::npos) << logged;
  EXPECT_NE(logged.find("the schedule now ends at 40 steps"), std::string::npos) << logged;
}

TEST_F(Resume, ATimeLimitAddedOnResumeCountsFromTheResume) {
  run(request("run"));
  std::string logged;
  const Log log(LogLevel::info, [&](LogLevel, std::string_view line) { logged += std::string(line) + "\n"; });
  TrainRequest timed =
      resumed("run", {"steps=0", "max_seconds=20", "schedule=wsd", "warmdown=5", "min_lr=0", "val_every=0"});
  timed.force = true;
  timed.clock = [now = 0.0]() mutable { return now++; };  // read twice per step: each step takes 1 s
  EXPECT_EQ(run(timed, log).steps, 40);
  EXPECT_NE(logged.find("resuming at step 20: 20.0 s of 20.0 s left"), std::string::npos) << logged;
  EXPECT_NE(logged.find("now ends at 20 s"), std::string::npos) << logged;
  std::vector<double> multipliers;
  std::ifstream file(folder_ / "run" / "metrics.jsonl");
  for (std::string line; std::getline(file, line);)
    if (const Json event = parse_json(line, "line"); event.find("lr_multiplier"))
      multipliers.push_back(event.at("lr_multiplier").as_double());
  ASSERT_EQ(multipliers.size(), 40u);
  EXPECT_EQ(multipliers[35], 1);
  for (std::size_t left = 1; left < 5; ++left)
    EXPECT_DOUBLE_EQ(multipliers[40 - left], static_cast<double>(left) / 5) << left;
}

// Otherwise the average would not change until the learning rate falls again, and it would keep old
// weights.
TEST_F(Resume, ALargerNumberOfStepsRestartsTheAverage) {
  const auto settings = [](const char* steps) {
    return std::vector<std::string>{"swa_start=0.5", "swa_every=1", "schedule=wsd", "warmdown=0.5", steps};
  };
  EXPECT_EQ(run(request("run", settings("steps=20"))).weights, "swa");
  std::string logged;
  const Log log(LogLevel::info, [&](LogLevel, std::string_view line) { logged += std::string(line) + "\n"; });
  TrainRequest longer = resumed("run", settings("steps=80"));
  longer.stop_after = 4;
  EXPECT_EQ(run(longer, log).weights, "raw");
  EXPECT_NE(logged.find("restarting the average of the weights"), std::string::npos) << logged;
  longer.stop_after = 0;
  EXPECT_EQ(run(longer).weights, "swa") << "averaged at the new end";
  EXPECT_EQ(OpenedCheckpoint(folder_ / "run" / "last.safetensors").head.state.averaged, 19);
}

TEST_F(Resume, ChangedSettingsAreListedAndNeedForce) {
  const Config before = config();
  EXPECT_TRUE(check_changes(before, before, false).empty());
  EXPECT_EQ(check_changes(before, config({"val_every=3", "keep=7"}), false),
            (std::vector<std::string>{"val_every: 6 -> 3", "keep: 2 -> 7"}));
  try {
    check_changes(before, config({"lr=0.5", "clip=0.25"}), false);
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "the run was started with different settings: lr: 0.01 -> 0.5, matrix_lr: 0.02 -> 0.0, "
                 "clip: 1.0 -> 0.25");
  }
  EXPECT_EQ(check_changes(before, config({"lr=0.5"}), true),
            (std::vector<std::string>{"lr: 0.01 -> 0.5", "matrix_lr: 0.02 -> 0.0"}));
  for (const char* never : {"layers=3", "muon_steps=0", "ema_decay=0.9", "swa_start=0.5", "norm_eps=1e-5"})
    EXPECT_THROW(check_changes(before, config({never}), true), Error) << never;
  EXPECT_EQ(check_changes(before, config({"dropout=0.1"}), true).size(), 1u);
}

TEST_F(Resume, ForceAllowsChangedSettings) {
  run_until(request("run"), 5);
  TrainRequest changed = resumed("run", {"lr=0.05"});
  EXPECT_THROW(run(changed), Error);
  changed.force = true;
  EXPECT_EQ(run(changed).status, RunStatus::completed);
}

}  // namespace
}  // namespace thimble
