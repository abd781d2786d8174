#include <cmath>
#include <fstream>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "formats/model_file.h"
#include "formats/safetensors.h"
#include "model/config_builder.h"
#include "support/temp_folder.h"
#include "train/checkpoint.h"
#include "train/loop.h"
#include "train/metrics.h"
#include "train/run_folder.h"

namespace thimble {
namespace {

std::string sample_text() {
  std::string text;
  for (int i = 0; i < 120; ++i) text += "line " + std::to_string(i * i) + " of a text that says little.\n";
  return text;
}

class Training : public testing::Test {
 protected:
  Training() { folder_.write("text.txt", sample_text()); }

  // Settings as "key=value", on top of a tiny model.
  TrainRequest request(const std::string& run, const std::vector<std::string>& settings = {}) {
    ConfigBuilder builder;
    builder.preset("quick");
    for (const char* setting :
         {"context=16", "layers=2", "dim=32", "heads=2", "kv_heads=1", "head_dim=16", "rope_dims=16",
          "mlp_hidden=48", "batch_tokens=64", "micro_batch=2", "steps=20", "val_every=6", "warmup_steps=3"})
      builder.set(setting);
    for (const std::string& setting : settings) builder.set(setting);
    TrainRequest request;
    request.tokenizer = load_tokenizer("bytes");
    builder.derive("vocab_size", std::int64_t{request.tokenizer->vocab_size()});
    request.config = builder.resolve();
    request.source.data = folder_ / "text.txt";
    request.data = load_text(request.source.data, {}, 0.1, *request.tokenizer);
    request.run = folder_ / run;
    return request;
  }

  static TrainResult run(const TrainRequest& request) {
    const Interrupt interrupt;
    return train(request, Log::nowhere(), ProgressOutput::nowhere(), interrupt);
  }

  std::string last(const std::string& run) { return read_file(folder_ / run / "last.safetensors", 1 << 26); }

  TempFolder folder_;
};

TEST_F(Training, TwentyStepsEqualNineAndResumeToTwentyByteForByte) {
  for (const auto& [name, setting] :
       std::vector<std::pair<std::string, std::string>>{{"muon", "muon_steps=5"},
                                                        {"adam", "muon_steps=0"},
                                                        {"qat", "qat_bits=6"},
                                                        {"dropout", "dropout=0.2"},
                                                        {"clip", "clip=0.5"}}) {
    run(request(name + "-straight", {setting}));
    TrainRequest first = request(name + "-resumed", {setting});
    first.stop_after = 9;
    EXPECT_EQ(run(first).status, "stopped");
    TrainRequest second = request(name + "-resumed", {setting});
    second.resume = true;
    EXPECT_EQ(run(second).status, "completed");
    EXPECT_EQ(last(name + "-straight"), last(name + "-resumed")) << name;
  }
}

TEST_F(Training, MicroBatchesOnlyCutTheWorkUp) {
  const TrainResult whole = run(request("whole", {"micro_batch=4"})),
                    cut = run(request("cut", {"micro_batch=1"}));
  EXPECT_NEAR(whole.val_loss, cut.val_loss, 1e-3);
}

TEST_F(Training, LeavesARunThatEveryToolCanUse) {
  const TrainResult result = run(request("run"));
  EXPECT_EQ(result.status, "completed");
  EXPECT_EQ(result.steps, 20);
  EXPECT_EQ(result.tokens, 20 * 64);
  EXPECT_LT(result.val_bpb, 8);
  for (const char* name : {"config.toml", "data.json", "metrics.jsonl", "run.json", "tokenizer.json",
                           "last.safetensors", "best.safetensors", "checkpoints/step-00000020.safetensors"})
    EXPECT_TRUE(std::filesystem::exists(folder_ / "run" / name)) << name;
  EXPECT_EQ(std::filesystem::hard_link_count(folder_ / "run" / "last.safetensors"),
            result.best_step == 20 ? 3u : 2u);
  const ModelFile model = open_model(folder_ / "run");
  EXPECT_EQ(open_tokenizer(model)->vocab_size(), model.config.model.vocab_size);
}

TEST_F(Training, KeepsTheNewestCheckpointsAndTheBest) {
  run(request("run", {"checkpoint_every=2", "keep=2"}));
  int steps = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder_ / "run" / "checkpoints"))
    steps += entry.is_regular_file();
  EXPECT_EQ(steps, 2);
  EXPECT_TRUE(std::filesystem::exists(folder_ / "run" / "best.safetensors"));
}

TEST_F(Training, MetricsOfARunThatWasStoppedAreThoseOfOneThatWasNot) {
  const auto losses = [&](const std::string& run) {
    std::vector<double> values;
    std::ifstream file(folder_ / run / "metrics.jsonl");
    for (std::string line; std::getline(file, line);) {
      const Json event = parse_json(line, "line");
      values.push_back(event.at(event.at("event").as_string() == "step" ? "loss" : "val_loss").as_double());
    }
    return values;
  };
  run(request("straight"));
  TrainRequest first = request("resumed", {"checkpoint_every=5", "keep=9"});
  first.stop_after = 9;
  run(first);
  // As after a kill: the checkpoint is older than the metrics, whose last line is cut.
  std::filesystem::remove(folder_ / "resumed" / "last.safetensors");
  std::filesystem::create_hard_link(folder_ / "resumed" / "checkpoints" / "step-00000005.safetensors",
                                    folder_ / "resumed" / "last.safetensors");
  std::ofstream(folder_ / "resumed" / "metrics.jsonl", std::ios::app) << "{\"event\": \"st";
  TrainRequest second = request("resumed", {"checkpoint_every=5", "keep=9"});
  second.resume = true;
  run(second);
  EXPECT_EQ(losses("resumed"), losses("straight"));
}

TEST_F(Training, AnExistingRunIsNotOverwritten) {
  run(request("run"));
  EXPECT_THROW(run(request("run")), Error);
  TrainRequest again = request("run");
  again.replace = true;
  EXPECT_EQ(run(again).status, "completed");
}

TEST_F(Training, OtherDataCannotBeResumed) {
  TrainRequest first = request("run");
  first.stop_after = 3;
  run(first);
  folder_.write("text.txt", sample_text() + "more");
  TrainRequest second = request("run");
  second.resume = true;
  EXPECT_THROW(run(second), Error);
}

TEST_F(Training, WeightsThatAreNotFiniteEndTheRunAsDiverged) {
  TrainRequest first = request("run");
  first.stop_after = 2;
  run(first);
  const SafetensorsFile file = SafetensorsFile::open(folder_ / "run" / "last.safetensors");
  const CheckpointHead head = read_checkpoint_head(file);
  const Context context;
  Model model(head.config.model, context);
  Optimizer optimizer(model.params(), head.config.train);
  restore_checkpoint(file, model, optimizer);
  model.weights()[5] = NAN;
  PosixFileOps ops;
  write_checkpoint(ops, folder_ / "run" / "last.safetensors", head.config, head.state, *head.tokenizer, model,
                   optimizer);
  TrainRequest second = request("run");
  second.resume = true;
  EXPECT_EQ(run(second).status, "diverged");
}

TEST_F(Training, ATruncatedCheckpointIsAClearErrorAtEveryKilobyte) {
  TrainRequest first = request("run");
  first.stop_after = 2;
  run(first);
  const std::string whole = last("run");
  for (std::size_t size = 0; size < whole.size(); size += 1024) {
    folder_.write("cut.safetensors", whole.substr(0, size));
    try {
      read_checkpoint_head(SafetensorsFile::open(folder_ / "cut.safetensors"));
      FAIL() << "a file of " << size << " bytes was accepted";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("cut.safetensors"), std::string::npos) << error.what();
    }
  }
}

TEST_F(Training, WhatIsNotThereYetIsRefusedByName) {
  try {
    run(request("run", {"ema_decay=0.99"}));
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "ema_decay is not in this version yet");
  }
}

TEST_F(Training, ARunThatIsUnderWayIsLeftAlone) {
  TrainRequest first = request("run");
  first.stop_after = 2;
  run(first);
  const std::string before = last("run");
  PosixFileOps ops;
  const MetricsFile live(
      ops, RunFolder(ops, folder_ / "run").metrics());  // as a process in the middle of training has it
  folder_.write("run/checkpoints/.step-00000003.safetensors.tmp", "half a checkpoint");
  const auto files = folder_.files();
  TrainRequest forced = request("run"), resumed = request("run");
  forced.replace = true;
  resumed.resume = true;
  for (const TrainRequest& intruder : {forced, resumed, request("run")}) {
    EXPECT_THROW(run(intruder), Error);
    EXPECT_EQ(folder_.files(), files);
    EXPECT_EQ(last("run"), before);
  }
}

TEST_F(Training, AStartThatFailedDoesNotBlockTheFolder) {
  PosixFileOps ops;
  RunFolder failed(ops, folder_ / "run");
  failed.create();
  failed.write_text("config.toml", "left by a start that ran out of memory");
  { const MetricsFile metrics(ops, failed.metrics()); }
  EXPECT_EQ(run(request("run")).status, "completed");
}

TEST_F(Training, AnInterruptedValidationIsDoneAgainOnResume) {
  run(request("straight"));
  TrainRequest stopped = request("resumed");
  stopped.stop_after = 6;  // a step with a validation
  run(stopped);
  // As Ctrl-C in the middle of that validation leaves it.
  SafetensorsFile file = SafetensorsFile::open(folder_ / "resumed" / "last.safetensors");
  CheckpointHead head = read_checkpoint_head(file);
  const Context context;
  Model model(head.config.model, context);
  Optimizer optimizer(model.params(), head.config.train);
  restore_checkpoint(file, model, optimizer);
  head.state.validation_due = true;
  head.state.best_step = -1;
  head.state.best_val_loss = 0;
  PosixFileOps ops;
  write_checkpoint(ops, folder_ / "resumed" / "last.safetensors", head.config, head.state, *head.tokenizer,
                   model, optimizer);
  TrainRequest resumed = request("resumed");
  resumed.resume = true;
  EXPECT_EQ(run(resumed).status, "completed");
  EXPECT_EQ(last("straight"), last("resumed"));
}

TEST_F(Training, AStaleLaterCheckpointIsNotMistakenForTheNewest) {
  TrainRequest first = request("run", {"keep=1"});
  first.stop_after = 3;
  run(first);
  std::filesystem::copy_file(folder_ / "run" / "last.safetensors",
                             folder_ / "run" / "checkpoints" / "step-00000015.safetensors");
  TrainRequest second = request("run", {"keep=1", "checkpoint_every=2", "val_every=0"});
  second.resume = true;
  second.stop_after = 1;
  const TrainResult result = run(second);
  EXPECT_TRUE(std::filesystem::exists(result.checkpoint)) << result.checkpoint;
  EXPECT_FALSE(std::filesystem::exists(folder_ / "run" / "checkpoints" / "step-00000015.safetensors"));
}

TEST_F(Training, OverfitsAKilobyteOfText) {
  const std::string text = sample_text().substr(0, 1024);
  folder_.write("text.txt", text);
  folder_.write("same.txt", text);
  TrainRequest overfit = request("run", {"context=64", "batch_tokens=512", "dim=64", "mlp_hidden=192",
                                         "steps=250", "val_every=0", "micro_batch=8"});
  overfit.source.val_data = folder_ / "same.txt";
  overfit.data = load_text(overfit.source.data, overfit.source.val_data, 0.1, *overfit.tokenizer);
  const TrainResult result = run(overfit);
  EXPECT_LT(result.train_loss, 0.05);
}

}  // namespace
}  // namespace thimble
