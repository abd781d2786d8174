// The training loop: the order of events in a run.
//
// Each event is handled by a part with its own state: StepRunner makes a step, Validator scores the
// model and generates samples, RunCheckpoints initializes, restores and saves, Reporter writes
// output.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "data/loader.h"
#include "model/model.h"
#include "optim/averaging.h"
#include "optim/optimizer.h"
#include "train/checkpoint.h"
#include "train/ranks.h"
#include "train/reporter.h"
#include "train/step_runner.h"
#include "train/train.h"
#include "train/validation.h"

namespace thimble {

class Trainer {
 public:
  // Initializes the model or restores it from the newest checkpoint. Writes nothing yet.
  explicit Trainer(const RunContext& run);
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  const TrainState& state() const { return state_; }
  const Model& model() const { return model_; }

  // Prepares the run's folder. Call it only when all ranks are ready to start; only rank 0 reads
  // and changes the folder, so no other rank reads metrics.jsonl while it is being truncated.
  void prepare_folder();

  // Trains until the end of the run or of this call.
  TrainResult run();

 private:
  // The events, in order.
  void prime();
  void first_validation();
  void step();
  void count_step(StepReport& report, double started);
  void close_step(bool with_validation);
  bool validate();  // true if this is the best so far
  void save(bool best);
  void diverge(std::int64_t step, const std::string& what);
  void diverge_not_finite(std::int64_t step, const std::string& what);
  TrainResult finish(double wall_seconds);

  void note_cpu_use(const RunHistory& history) const;  // whether it differs from that of the last call

  // The phase of the run. All of these depend only on the settings, the step and the elapsed time.
  double multiplier() const;  // of the learning rates
  int qat_bits() const;
  bool layer_loop_has_begun() const;
  void enable_layer_loop();
  bool begins_with_validation() const;
  bool made_all_steps() const;
  bool is_out_of_time() const;
  std::int64_t steps_in_time() const;  // see TrainResult; 0: this call is on time
  std::optional<RunStatus> status_now(bool validated, bool stop_requested) const;  // nullopt: continue
  StopRequest stop_request() const;

  const RunContext& run_;
  const Config& config_;
  Context context_;
  Model model_;
  Optimizer optimizer_;
  Averaging averaging_;
  BatchLoader loader_;
  ByteTable bytes_;
  std::unique_ptr<StepRunner> steps_;
  RunCheckpoints checkpoints_;
  Validator validator_;
  std::optional<Reporter> reporter_;  // set by prepare_folder()
  TrainState state_;
  std::int64_t first_step_ = 0;      // of this call
  double started_ = 0;               // when run() began to train, by the request's clock
  std::int64_t steps_in_time_ = 0;   // set when the run is stopped because it is late
  std::optional<RunStatus> status_;  // nullopt while training
  std::string divergence_;           // why it diverged, for the diagnosis; empty: it did not
};

}  // namespace thimble
