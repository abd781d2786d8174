// Checkpoints: one safetensors file holds all that training needs to go on, and all that any later tool needs
// of the model.
//
//   NAME                   the weights, f32, under the names of params.h; with SWA or EMA on, the averaged ones
//   optim.raw.NAME         then these are the weights that training goes on from
//   optim.STATE.NAME       what the update rule of a parameter keeps for it (RuleDefinition::states): m is Adam's mean or
//                          Muon's momentum, v Adam's mean square
//   optim.loss_scale       f32 [2], where training computes in f16: the scale, and its good steps (ops/step_state.h)
//   thimble.tokenizer      U8: the content of the tokenizer's file
//   thimble.train_state    U8: a JSON object, TrainState below
//   thimble.digest         U8: digests of everything before it (safetensors.h)
//
// Metadata: thimble.config (the resolved config as TOML), thimble.layout (chats), thimble.step, thimble.version, and
// what `thimble qa` holds the model to: thimble.golden and thimble.golden_nats (validation.h) and, if this very step
// was validated, thimble.val_loss, thimble.val_bpb, thimble.val_set and thimble.val_tokens (which tokens those are of,
// and how many).
// No time, host or speed: equal runs give equal bytes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/file_ops.h"
#include "config/config.h"
#include "data/read_order.h"
#include "formats/safetensors.h"
#include "formats/weights_file.h"
#include "model/model.h"
#include "optim/averaging.h"
#include "optim/optimizer.h"
#include "tokenizer/tokenizer.h"

namespace thimble {

struct TrainState {
  std::int64_t step = 0;  // updates made
  std::int64_t tokens = 0;
  ReadPosition position;
  double best_val_loss = 0;
  std::int64_t best_step = -1;         // -1: no validation yet
  double patience_loss = 0;            // what the next validation must beat by min_delta, or it is one more
  std::int64_t stale_validations = 0;  // in a row
  bool validation_due = false;         // it was interrupted
  std::int64_t averaged = 0;           // states in the average
  double elapsed_seconds = 0;          // of steps; kept only where max_seconds counts
  std::int64_t untimed_steps = 0;      // that are not in it
  bool began_trained = false;          // from the weights of a model: its step 0 may be the best
  std::string data_digest;             // of the tokens, training and validation
  std::string layout;  // of chats, for whoever talks to the model; empty: it learned from text

  bool operator==(const TrainState&) const = default;
};

// What the model did when it was saved, under the keys of formats/weights_file.h.
using CheckpointRecord = std::vector<std::pair<std::string, std::string>>;

// What changes with every step.
struct TrainedModel {
  Model& model;
  Optimizer& optimizer;
  Averaging& averaging;
};

// What is known before a model is made.
struct CheckpointHead {
  Config config;
  TrainState state;
  std::unique_ptr<Tokenizer> tokenizer;
};

void write_checkpoint(FileOps& ops, const std::filesystem::path& path, const Config& config,
                      const TrainState& state, const Tokenizer& tokenizer, const TrainedModel& trained,
                      const CheckpointRecord& record = {});

// Checks all digests: a file that was cut or changed is an Error.
CheckpointHead read_checkpoint_head(const SafetensorsFile& file);
void restore_checkpoint(const SafetensorsFile& file, const TrainState& state, const TrainedModel& trained);

// What may change when a run goes on.
//
//   freely       how long and how often: steps, max_seconds, val_every, keep, ...
//   with force   every other setting of training: the run is no longer the one that its first steps began
//   never        the model (dropout excepted), and what the saved state is made for: a parameter's update rule, SWA or EMA
// Refuses what may not change, naming all of it; returns a line for each setting that does: "lr: 0.01 -> 0.02".
std::vector<std::string> check_changes(const Config& before, const Config& after, bool force);

// A run that made its steps, used up its time or ran out of patience is an Error: there is nothing to go on with.
void check_unfinished(const TrainConfig& train, const TrainState& state, const std::string& name);

// Where it goes on: "resuming at step 20 of 100".
std::string resume_note(const TrainConfig& train, const TrainState& state);

// Schedules are functions of the step and of the end. With another end they keep their shape, so the rate of the next
// step may jump: a sentence that says so; empty if the end is the same.
std::string schedule_note(const TrainConfig& before, const TrainConfig& after, const TrainState& state);

struct RunContext;
class StepRunner;
class Validator;

// The checkpoints of one run: where it begins or goes on from, and what it leaves in its folder.
class RunCheckpoints {
 public:
  RunCheckpoints(const RunContext& run, const TrainedModel& trained, StepRunner& steps)
      : run_(run), trained_(trained), steps_(steps) {}

  // A new run: weights from the seed or from the request, and the first average.
  void begin(TrainState& state);
  // A run that goes on: the newest checkpoint of its folder. Settings that may not change, other data and a run that is
  // complete are Errors; what did change is logged.
  void restore(TrainState& state);

  // Takes out of the folder what is no part of the run: an older run, or what came after the checkpoint.
  void take_folder(const TrainState& state);
  void write_settings();  // config.toml, data.json and the tokenizer's file

  // Writes a checkpoint, `best` also under that name, with the record of the validator. False, and nothing is written,
  // where a weight is not finite. All ranks call it; the first writes.
  bool save(const TrainState& state, bool best, Validator& validator);

  std::int64_t saved_step() const { return saved_step_; }  // of the newest checkpoint; -1: none
  bool any() const;                                        // the run has a checkpoint
  // The one to name at the end: the last that this call wrote, or for a run that diverged the last of the run.
  std::filesystem::path newest(bool diverged) const;
  std::string rescue_note(std::int64_t failed_step) const;  // how to go on after a failure

 private:
  void refuse_if_complete(const TrainState& state);
  void note_machine() const;
  void note_schedule(const TrainConfig& before, TrainState& state);

  const RunContext& run_;
  TrainedModel trained_;
  StepRunner& steps_;
  std::int64_t saved_step_ = -1;
  std::filesystem::path newest_;  // that this call wrote
};

}  // namespace thimble
