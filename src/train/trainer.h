// A run of training: the order of its events.
//
// What happens at an event is the business of a part, which has its state: StepRunner makes a step, Validator scores
// the model and generates samples, RunCheckpoints begins, restores and saves, Reporter tells people and files of it.
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
  // The model at its start, or as the newest checkpoint has it. Nothing is written yet.
  explicit Trainer(const RunContext& run);
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  const TrainState& state() const { return state_; }
  const Model& model() const { return model_; }

  // The run's folder is changed only when all ranks are ready to go, and by the first alone: the others would read the
  // metrics while it cuts them.
  void take_folder();

  // To the end of the run, or of this call.
  TrainResult run();

 private:
  // The events, in their order.
  void prime();
  void first_validation();
  void step();
  void count_step(StepReport& report, double started);
  void close_step(bool with_validation);
  bool validate();  // true if this is the best so far
  void save(bool best);
  void diverge(std::int64_t step, const std::string& what);
  TrainResult finish(double wall_seconds);

  // Which phase the run is in: all are functions of the settings, the step and the time.
  double multiplier() const;  // of the learning rates
  int qat_bits() const;
  bool layer_loop_has_begun() const;
  void enable_layer_loop();
  bool begins_with_validation() const;
  bool made_all_steps() const;
  bool is_out_of_time() const;
  std::optional<RunStatus> status_now(bool validated, bool asked_to_stop) const;  // nothing: it goes on
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
  std::optional<Reporter> reporter_;  // from take_folder() on
  TrainState state_;
  std::int64_t first_step_ = 0;      // of this call
  std::optional<RunStatus> status_;  // nothing: it goes on
};

}  // namespace thimble
