// The training loop.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "base/interrupt.h"
#include "base/log.h"
#include "base/progress.h"
#include "data/token_data.h"
#include "model/config.h"
#include "tokenizer/tokenizer.h"
#include "train/data_settings.h"

namespace thimble {

struct TrainRequest {
  Config config;  // resolved; vocab_size is the tokenizer's
  std::shared_ptr<const Tokenizer> tokenizer;
  TokenData data;
  DataSettings source;  // where `data` came from
  std::filesystem::path run;
  bool resume = false;          // from run/last.safetensors
  bool replace = false;         // an older run in the folder goes
  std::int64_t stop_after = 0;  // updates of this call; 0: until the end
};

struct TrainResult {
  std::string status;  // completed, wallclock, stopped, interrupted, diverged
  std::int64_t steps = 0, tokens = 0;
  double train_loss = 0;             // mean of the last steps of this call
  double val_loss = 0, val_bpb = 0;  // of the last validation
  bool validated = false;
  std::int64_t best_step = -1;
  double seconds = 0;  // of steps, in this call
  double tokens_per_second = 0;
  std::filesystem::path checkpoint;
};

// Interrupted: finishes the step, saves, and returns with status "interrupted".
TrainResult train(const TrainRequest& request, const Log& log, const ProgressOutput& progress,
                  const Interrupt& interrupt);

}  // namespace thimble
