// Checkpoints: one safetensors file with everything needed to resume training and to use the model.
//
//   NAME                   the weights, f32, named as in params.h; with SWA or EMA on, the averages
//   optim.raw.NAME         with SWA or EMA on: the raw weights, from which training continues
//   optim.STATE.NAME       optimizer state of a parameter (RuleDefinition::states): m is Adam's
//                          mean or Muon's momentum, v is Adam's mean square
//   optim.loss_scale       f32 [2], f16 training only: scale and its good steps (ops/step_state.h)
//   thimble.tokenizer      U8: the content of the tokenizer's file
//   thimble.train_state    U8: a JSON object, TrainState below
//   thimble.digest         U8: digests of everything before it (safetensors.h)
//
// A checkpoint of step 0 has no optim.raw and no optimizer state: the averages and the raw weights
// are equal, and the state is zero.
//
// Metadata: thimble.config (the resolved config as TOML), thimble.layout (chats), thimble.step,
// thimble.version, and the reference values that `thimble qa` checks: thimble.golden and
// thimble.golden_nats (validation.h). If this step was validated, also thimble.val_loss,
// thimble.val_bpb, thimble.val_set (which tokens were scored) and thimble.val_tokens (how many). A
// run with lora_rank has adapters instead of weights, and names their base (formats/adapters.h).
// Times, host names and speeds are not stored, so equal runs write equal bytes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/file_ops.h"
#include "base/progress.h"
#include "config/config.h"
#include "data/read_order.h"
#include "formats/adapters.h"
#include "formats/safetensors.h"
#include "formats/weights_file.h"
#include "model/model.h"
#include "optim/averaging.h"
#include "optim/optimizer.h"
#include "tokenizer/tokenizer.h"
#include "train/metrics.h"
#include "train/run_folder.h"

namespace thimble {

struct TrainState {
  std::int64_t step = 0;  // updates made
  std::int64_t tokens = 0;
  ReadPosition position;
  double best_val_loss = 0;
  std::int64_t best_step = -1;               // -1: none is better than the untrained model
  std::optional<double> untrained_val_loss;  // of step 0, which later validations must beat
  LossTrend loss_trend;
  double patience_loss = 0;            // a validation that does not beat this by min_delta is stale
  std::int64_t stale_validations = 0;  // in a row
  bool validation_due = false;         // the validation of this step was interrupted
  std::int64_t averaged = 0;           // number of weight states in the average
  double elapsed_seconds = 0;          // time spent in steps; counted only if max_seconds is set
  std::int64_t untimed_steps = 0;      // steps not included in elapsed_seconds
  bool began_trained = false;          // started from --init weights: step 0 may be the best
  std::string data_digest;             // of the training and validation tokens
  std::string layout;                  // chat layout; empty for a model trained on plain text

  bool operator==(const TrainState&) const = default;
};

// Metadata about the model's output at the time of saving, under the keys of
// formats/weights_file.h.
using CheckpointRecord = std::vector<std::pair<std::string, std::string>>;

// The parts of a run that change with every step.
struct TrainedModel {
  Model& model;
  Optimizer& optimizer;
  Averaging& averaging;
};

// The part of a checkpoint that is needed before a model is created.
struct CheckpointHead {
  Config config;
  TrainState state;
  std::unique_ptr<Tokenizer> tokenizer;
  AdapterBase base = {};  // of a run with lora_rank
};

void write_checkpoint(FileOps& ops, const std::filesystem::path& path, const Config& config,
                      const TrainState& state, const Tokenizer& tokenizer, const TrainedModel& trained,
                      const CheckpointRecord& record = {}, const ProgressOutput& progress = {});

// Verifies all digests; throws Error if the file is truncated or was modified.
CheckpointHead read_checkpoint_head(const SafetensorsFile& file, const ProgressOutput& progress = {});

// Only the state, without verifying the file. Needs the content of kTrainStateTensor only.
TrainState read_train_state(const SafetensorsFile& file);
// Frees the memory of each tensor when it has been copied: the file then has no weights any more.
void restore_checkpoint(SafetensorsFile& file, const TrainState& state, const TrainedModel& trained);

// The checkpoint that a run resumes from.
struct ResumePoint {
  SafetensorsFile file;
  CheckpointHead head;
  std::vector<std::string> damaged = {};  // why newer checkpoints of the run were skipped
};

// Opens `named`, or if it is empty the newest intact checkpoint of the run. Throws Error if there
// is none. A named checkpoint must be the run's newest intact one unless `force`, because resuming
// removes those after it.
ResumePoint open_resume_point(const RunFolder& run, const std::filesystem::path& named, bool force,
                              const ProgressOutput& progress = {});

// Only the head of that checkpoint, without reading and verifying its weights. If those turn out to
// be damaged, open_resume_point() chooses an older checkpoint.
CheckpointHead read_resume_head(const RunFolder& run, const std::filesystem::path& named, bool force);

// The command that continues a run.
std::string resume_command(const std::filesystem::path& run);

// Which settings may change on resume:
//
//   always       durations and intervals: steps, max_seconds, val_every, keep, ...
//   with force   every other training setting
//   never        the model (except dropout) and everything that determines which state is saved:
//                the update rule of a parameter, whether SWA or EMA is on
// Throws an Error that lists all forbidden changes. Returns one line per changed setting, such as
// "lr: 0.01 -> 0.02". `instead` completes the hint "use ...".
std::vector<std::string> check_changes(
    const Config& before, const Config& after, bool force,
    std::string_view instead = "--init to start a new run from these weights");

// Throws Error if the run is complete: all steps made, max_seconds used up, target_val_loss
// reached, or out of patience.
void check_unfinished(const TrainConfig& train, const TrainState& state, const std::string& name);

// For example "resuming at step 20 of 100".
std::string resume_note(const TrainConfig& train, const TrainState& state);

// Schedules depend on the step and on the end of the run. If the end changes, the learning rate of
// the next step may jump. Returns a sentence about it, or an empty string if the end is unchanged.
std::string schedule_note(const TrainConfig& before, const TrainConfig& after, const TrainState& state);

// The difference between the run's config.toml and the config of its checkpoint, as a sentence with
// the options that make the change. Only the checkpoint counts, so an edit of the file has no
// effect. Empty without a difference, or if `now` already has the values of the file.
std::string edited_note(const std::filesystem::path& config_toml, const Config& saved, const Config& now);

struct RunContext;
class StepRunner;
class Validator;

// The checkpoints of one run: initializes or restores the training state and saves it.
class RunCheckpoints {
 public:
  RunCheckpoints(const RunContext& run, const TrainedModel& trained, StepRunner& steps);

  // New run: sets the weights from the seed or the request and starts the average.
  void begin(TrainState& state);
  // Resumed run: loads the requested checkpoint or the newest intact one and logs changed settings.
  // Throws Error for forbidden changes, different data, or a run that is already complete.
  void restore(TrainState& state);

  // Deletes files that are not part of this run: an older run's, or (on resume) those written after
  // the checkpoint. Then `last` is the checkpoint resumed from.
  void prepare_folder(const TrainState& state);
  void write_settings();  // config.toml, data.json and the tokenizer's file

  // Writes a checkpoint with the validator's record; `best` also publishes it as best.safetensors.
  // Returns false and writes nothing if a weight is not finite. All ranks call it; rank 0 writes.
  bool save(const TrainState& state, bool best, Validator& validator);

  std::int64_t saved_step() const { return saved_step_; }  // step of the newest checkpoint; -1: none
  // The checkpoint to report at the end: the last one this process wrote; if the run diverged, its
  // best one, or its last one if none is the best.
  std::filesystem::path newest(bool diverged) const;
  std::string kept_note() const;                            // what is left after a divergence
  std::string rescue_note(std::int64_t failed_step) const;  // how to resume after a failure

 private:
  void refuse_if_complete(const TrainState& state);
  void rewind(const TrainState& state);
  void note_schedule(const TrainConfig& before, TrainState& state);

  const RunContext& run_;
  TrainedModel trained_;
  StepRunner& steps_;
  CheckpointRecord base_record_;  // names the base of adapters
  std::int64_t saved_step_ = -1;
  std::filesystem::path newest_;   // last checkpoint this process wrote
  std::filesystem::path resumed_;  // the checkpoint this process started from
};

}  // namespace thimble
