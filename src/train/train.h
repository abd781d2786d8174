// Training: from a config and data to a run folder that every other command can open.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/file_ops.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/signals.h"
#include "config/config.h"
#include "dist/communicator.h"
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
  bool source_was_named =
      true;  // resuming: false goes on with the shards in the run's folder, if there are any
  std::filesystem::path run;
  std::shared_ptr<DeviceRuntime> device = cpu_runtime();
  // All that train this model together: each makes this call.
  std::shared_ptr<Communicator> ranks = single_rank();
  std::shared_ptr<DeviceCommunicator> gpus = {};  // theirs, where they train on GPUs
  std::vector<float> initial_weights = {};        // laid out as the params table says; empty: from the seed
  bool resume = false;                            // from run/last.safetensors
  bool force = false;           // a new run replaces one that is there; a resumed one may change its settings
  std::int64_t stop_after = 0;  // updates of this call; 0: until the end
  bool validate_first = true;   // before the first step, too
  std::int64_t samples = 0;     // texts generated at each validation, for the report
  TrainObserver* observer = nullptr;            // may be null
  std::function<double()> clock = seconds_now;  // that steps are timed by: tests bring their own
  RuleList rules = update_rules();              // likewise
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
  double seconds = 0;  // of steps, in this call
  double tokens_per_second = 0;
  std::filesystem::path checkpoint;
  std::optional<Diagnosis> diagnosis;
};

// Interrupted: finishes the step, saves, and returns with RunStatus::interrupted. `save_now` may be null; `disk` is the
// real one unless a test brings its own.
//
// Of several ranks all return the same; the first alone writes, logs and reports. What fails on one while they start is
// a FailedTogether on all (dist/communicator.h); what fails on one in the midst of training ends all processes.
TrainResult train(const TrainRequest& request, const Log& log, const ProgressOutput& progress,
                  const Interrupt& interrupt, const SaveSignal* save_now = nullptr, FileOps* disk = nullptr);

// What a call of train() was given and has opened, shared by the parts of a run. On all ranks but the first, log, progress
// and ops discard what they are given.
struct RunContext {
  const TrainRequest& request;
  const Config& config;  // the request's, with what was left to the machine
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
