// Training: takes a config and data, and writes a run folder that every other command can open.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/clock.h"
#include "base/file_ops.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/signals.h"
#include "config/config.h"
#include "dist/communicator.h"
#include "eval/memorization.h"
#include "formats/adapters.h"
#include "optim/update_rule.h"
#include "tensor/device.h"
#include "tokenizer/tokenizer.h"
#include "train/diagnosis.h"
#include "train/reporter.h"
#include "train/run_folder.h"
#include "train/train_data.h"

namespace thimble {

struct TrainRequest {
  Config config;  // resolved; vocab_size is at least the tokenizer's
  std::shared_ptr<const Tokenizer> tokenizer;
  DataSettings source;
  // On resume, false: use the shards in the run's folder, if there are any.
  bool source_was_named = true;
  std::filesystem::path run;
  std::shared_ptr<DeviceRuntime> device = cpu_runtime();
  // Every rank that trains this model calls train().
  std::shared_ptr<Communicator> ranks = single_rank();
  std::shared_ptr<DeviceCommunicator> gpus = {};  // for ranks that train on GPUs
  // Writes the weights of a new run, in ParamTable layout; empty: from the seed.
  std::function<void(std::span<float>)> initial_weights = {};
  // With lora_rank: the weights that the adapters are trained for, in the shape of the config.
  std::optional<FrozenModel> base = {};
  bool resume = false;                    // continue the run in `run`
  std::filesystem::path checkpoint = {};  // to resume from; empty: the newest intact one
  // New run: replace an existing one. Resume: allow changed settings and removing checkpoints after
  // `checkpoint`.
  bool force = false;
  std::int64_t stop_after = 0;  // steps of this call; 0: run to the end
  // Stop with TrainResult::steps_in_time once this call would take clearly longer; 0: no limit. For
  // one rank only: the times of several differ.
  double most_seconds = 0;
  bool validate_first = true;                   // also validate before the first step
  std::int64_t samples = 0;                     // texts generated at each validation, for the report
  std::int64_t memorization_tokens = 0;         // most tokens sampled to measure memorization; 0: none
  TrainObserver* observer = nullptr;            // may be null
  std::function<double()> clock = seconds_now;  // times the steps; tests replace it
  RuleList rules = update_rules();              // tests replace it
};

struct TrainResult {
  RunStatus status = RunStatus::completed;
  std::int64_t steps = 0, tokens = 0;
  double train_loss = 0;             // mean of the last steps
  double val_loss = 0, val_bpb = 0;  // of the last validation of this call
  bool validated = false;
  std::string weights;  // what is validated and saved as the model: "raw", "swa" or "ema"
  double best_val_loss = 0;
  std::int64_t best_step = -1;
  double epochs = 0;
  double seconds = 0;              // spent in steps, in this call
  std::int64_t steps_in_time = 0;  // stopped because of most_seconds: so many steps fit; otherwise 0
  double tokens_per_second = 0;
  std::filesystem::path checkpoint;
  std::optional<Diagnosis> diagnosis;
  std::optional<Memorization> memorization;  // of the model that the run's folder opens as
};

// When interrupted, finishes the step, saves, and returns RunStatus::interrupted. `save_now` may be
// null. `disk` null: the real file system.
//
// After the run has reached its end, rank 0 measures memorization, if the request asks for it and
// it takes a few seconds at most.
//
// All ranks return the same result, apart from memorization; only rank 0 writes, logs and reports.
// An error on one rank during start-up throws CollectiveFailure on all ranks (dist/communicator.h);
// during training it ends all processes.
TrainResult train(const TrainRequest& request, const Log& log, const ProgressOutput& progress,
                  const Interrupt& interrupt, const SaveSignal* save_now = nullptr, FileOps* disk = nullptr);

// The inputs and open files of one call of train(), shared by the parts of a run. On all ranks but
// the first, log, progress and ops discard their output.
struct RunContext {
  const TrainRequest& request;
  const Config& config;  // the request's, with dtype and micro-batch filled in
  const TrainData& data;
  const Log& log;
  const ProgressOutput& progress;
  FileOps& ops;
  RunFolder& folder;
  MetricsFile& metrics;
  const Interrupt& interrupt;
  const SaveSignal* save_now;  // may be null

  Communicator& ranks() const { return *request.ranks; }
  const Tokenizer& tokenizer() const { return *request.tokenizer; }
};

}  // namespace thimble
