// What people and programs see of a run: the table before its start, the live line, a row per validation, metrics.jsonl,
// the diagnosis at its end and run.json. An observer hears of the same events.
//
// Every figure is measured. What is not known is left out, never guessed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/progress.h"
#include "config/config.h"
#include "eval/score.h"
#include "optim/update_rule.h"
#include "tensor/tensor.h"
#include "train/metrics.h"
#include "train/step_runner.h"

namespace thimble {

class BatchLoader;
class Context;
struct RunContext;
struct TrainResult;

// One update, as it went.
struct StepReport {
  std::int64_t step = 0;  // updates made, this one included
  StepResult result;
  bool clipped = false;
  double multiplier = 1;  // of the learning rates
  int qat_bits = 0;       // of weights as the step saw them; 0: all of them
  double seconds = 0;
  double elapsed_seconds = 0;        // of steps since the run began; 0: not counted
  std::int64_t untimed_steps = 0;    // that are not in it
  ReadPosition position;             // where the next step reads
  std::optional<UpdateSizes> sizes;  // on some steps
};

struct ValidationReport {
  std::int64_t step = 0;
  Score score;
  bool best = false;
  bool last = false;    // the run is over
  std::string weights;  // which were scored: "raw", "swa" or "ema"
};

// Somebody who follows a run as it goes: `thimble golf` writes its log from here.
//
// Called in the loop's own thread, between steps. What it throws ends the run.
class TrainObserver {
 public:
  virtual ~TrainObserver() = default;

  virtual void primed(std::int64_t /*step*/, std::int64_t /*of*/) {}
  virtual void step(const StepReport& /*report*/) {}
  virtual void validating(std::int64_t /*tokens_scored*/) {}
  virtual void validation(const ValidationReport& /*report*/) {}
};

// What only the trainer knows of a run at its end.
struct RunEnd {
  std::int64_t first_step = 0;  // of this call
  std::int64_t parameters = 0;
  std::uint64_t unique_tokens = 0;  // of the training set
  double wall_seconds = 0;          // of this call, from its first step on
};

class Reporter {
 public:
  // `history`: of the steps before, where a run goes on. `observer` may be null.
  Reporter(const Config& config, const Log& log, ProgressOutput progress, MetricsFile& metrics,
           RunHistory history, TrainObserver* observer = nullptr);

  // A new run, before its first step: the table of its data, what it does beyond plain training, and the start event.
  void start(const RunContext& run, const BatchLoader& loader, std::int64_t parameters);

  // For the share that training reaches of what the machine's products reach alone. Not known: it is not shown.
  void measure_peak(const Context& context, DType dtype);  // where the live line will show it
  void set_peak(double flops_per_token, double peak_flops_per_second);

  void primed(std::int64_t step, std::int64_t of);
  void step(const StepReport& report);
  void validating(std::int64_t tokens_scored);
  void validation(const ValidationReport& report);
  void sample(std::int64_t step, const std::string& prompt, const std::string& text);

  // The end of a call: what limits the run, into the result with the other figures of the history, and run.json.
  void finish(const RunContext& run, const RunEnd& end, TrainResult& result);

  void note(std::string_view line);  // above the live line
  void warn(std::string_view line);  // the same

  const RunHistory& history() const { return history_; }
  std::int64_t tokens() const { return tokens_; }  // of this call
  double seconds() const { return seconds_; }      // the same: of steps
  double tokens_per_second() const { return seconds_ > 0 ? static_cast<double>(tokens_) / seconds_ : 0; }

 private:
  std::vector<std::string> notes(const StepReport& report) const;
  void write_step(const StepReport& report);
  void show(const StepReport& report);

  const Config& config_;
  const Log& log_;
  MetricsFile& metrics_;
  RunHistory history_;
  TrainObserver* observer_;
  std::string started_;  // when this call was, UTC
  ProgressOutput progress_;
  ProgressBar bar_;
  double noted_ = 0;  // when the live line got its last notes
  std::int64_t tokens_ = 0;
  double seconds_ = 0;
  double peak_tokens_per_second_ = 0;  // 0: not known
  std::optional<double> val_loss_;
  bool warned_of_wrap_ = false;  // the data began again: said once
};

// Memory of this process that is in use now; 0: not known.
std::int64_t resident_bytes();

// What a run does beyond plain training, in a line: so that nobody has to wonder whether a technique was on.
// "Muon (weight decay 0.04), int8 QAT, SWA below 0.5 of the rate every 50 steps"; empty: nothing of the kind.
std::string recipe(const Config& config);

}  // namespace thimble
