// Chooses the settings of a run from its data, the speed of the machine and the time: what `thimble
// train --data X` does without further options.
//
// The model is the candidate with the lowest expected loss (train/expected_loss.h): a larger one
// learns more from each token, but reads fewer in the same time. Vocabulary, context, batch and
// regularization follow from the size of the text and from how often it will be read. Everything
// that is chosen becomes part of the run's config. Settings given by the user are kept, and the
// others adapt to them.
//
// The choices are pure functions of PlanFacts. Only the measured speed depends on the machine; a
// resumed run takes its settings from the checkpoint and is not planned again.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/progress.h"
#include "base/signals.h"
#include "config/builder.h"
#include "data/difficulty.h"
#include "data/manifest.h"
#include "tensor/device.h"
#include "tokenizer/tokenizer.h"
#include "train/expected_loss.h"
#include "train/train_data.h"

namespace thimble {

struct PlanFacts {
  DataKind kind = DataKind::text;
  double train_bytes = 0, val_bytes = 0;  // of the text, without JSON syntax
  double difficulty = 0;                  // see train/expected_loss.h; 0: unknown
  bool difficulty_is_estimated = false;
  double bytes_per_token = 0;  // 0: not known yet, estimated from the size of the vocabulary
  double seconds = 0;          // for training and validation
  bool gpu = false;
  // Seconds of one training step with a resolved config.
  std::function<double(const Config&)> step_seconds = {};
};

// Times steps of at least `seconds` in total, at least three of them, on random tokens.
std::function<double(const Config&)> step_timer(const std::shared_ptr<DeviceRuntime>& device, double seconds,
                                                const ProgressOutput& progress, const Interrupt& interrupt);

// A BPE for a text of this size; nullopt: bytes, because the text is too short to learn a BPE.
std::optional<TokenizerSpec> planned_tokenizer(const PlanFacts& facts);

// Chooses the shape of the model, the context and the batch. vocab_size must be set.
void choose_model(const PlanFacts& facts, ConfigBuilder& settings);

struct RunLength {
  std::int64_t steps = 0;
  double step_seconds = 0;
  double seconds = 0;  // that training and validation are expected to take
  double epochs = 0;
  bool fills_time = true;  // false: the text is read as often as is useful before the time is up
};

// Chooses the number of steps so that training and validation end with the time, and the settings
// that follow from it: validation and early stop, and, unless `keep_recipe`, warm-up and
// regularization.
RunLength choose_length(const PlanFacts& facts, bool keep_recipe, ConfigBuilder& settings);

// The loss to expect of a run with these settings, which have a number of steps.
ExpectedLoss expected_loss(const PlanFacts& facts, const Config& config);

// A table: what was chosen, its value, and why.
std::string plan_table(const PlanFacts& facts, const RunLength& length, const ConfigBuilder& settings);

// Plans a run while it starts: begin with the data, ask for the tokenizer, then plan the rest.
class RunPlanner {
 public:
  // Samples the data. The time starts here.
  RunPlanner(const DataSettings& data, double minutes, std::shared_ptr<DeviceRuntime> device,
             ProgressOutput progress, const Interrupt& interrupt);

  std::optional<TokenizerSpec> tokenizer() const { return planned_tokenizer(facts_); }
  // Measures the speed and how hard the text is, and sets the length of the run and, if
  // `everything`, also the model and the regularization. `tokenizer` is null if it is not trained
  // yet; vocab_size must be set.
  void plan(bool everything, const std::shared_ptr<const Tokenizer>& tokenizer, ConfigBuilder& settings);

  const std::string& table() const { return table_; }
  const ExpectedLoss& expected() const { return expected_; }
  // For TrainRequest::most_seconds; 0 if the user chose the length.
  double most_seconds() const { return most_seconds_; }

 private:
  double seconds_left() const;
  void measure_difficulty(const std::shared_ptr<const Tokenizer>& tokenizer);

  double started_, minutes_, most_seconds_ = 0;
  std::shared_ptr<DeviceRuntime> device_;
  ProgressOutput progress_;
  const Interrupt& interrupt_;
  SampledText sample_;  // facts_ comes from it
  PlanFacts facts_;
  std::string table_;
  ExpectedLoss expected_;
};

}  // namespace thimble
