// Checkpoints: one safetensors file holds all that training needs to go on, and all that any later tool needs
// of the model.
//
//   NAME                   the weights, f32, under the names of params.h
//   optim.m.NAME           Adam's first moment, or Muon's momentum
//   optim.v.NAME           Adam's second moment (not for what Muon trains)
//   thimble.tokenizer      U8: the content of the tokenizer's file
//   thimble.train_state    U8: a JSON object, TrainState below
//   thimble.digest         U8: digests of everything before it (safetensors.h)
//
// Metadata: thimble.config (the resolved config as TOML), thimble.step, thimble.version. No time, host or
// speed: equal runs give equal bytes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "base/file_ops.h"
#include "data/token_data.h"
#include "formats/safetensors.h"
#include "model/model.h"
#include "optim/optimizer.h"

namespace thimble {

struct TrainState {
  std::int64_t step = 0;  // updates made
  std::int64_t tokens = 0;
  Loader::Position position;
  double best_val_loss = 0;
  std::int64_t best_step = -1;  // -1: no validation yet
  bool validation_due = false;  // it was interrupted
  double elapsed_seconds = 0;   // of steps; kept only where max_seconds counts
  std::string data_digest;      // of the tokens, training and validation

  bool operator==(const TrainState&) const = default;
};

// What is known before a model is made.
struct CheckpointHead {
  Config config;
  TrainState state;
  std::unique_ptr<Tokenizer> tokenizer;
};

void write_checkpoint(FileOps& ops, const std::filesystem::path& path, const Config& config,
                      const TrainState& state, const Tokenizer& tokenizer, Model& model,
                      Optimizer& optimizer);

// Checks all digests: a file that was cut or changed is an Error.
CheckpointHead read_checkpoint_head(const SafetensorsFile& file);
void restore_checkpoint(const SafetensorsFile& file, Model& model, Optimizer& optimizer);

}  // namespace thimble
