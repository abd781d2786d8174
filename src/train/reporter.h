// All output of a run: the data table at the start, the live line, a row per validation,
// metrics.jsonl, the final diagnosis and run.json. An observer receives the same events.
//
// Every figure is measured; unknown figures are omitted.
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

// The report of one step.
struct StepReport {
  std::int64_t step = 0;  // updates made, including this one
  StepResult result;
  bool clipped = false;
  double multiplier = 1;  // of the learning rates
  int qat_bits = 0;       // bits of the fake-quantized weights; 0: QAT off
  double seconds = 0;
  double elapsed_seconds = 0;        // time spent in steps since the run began; 0: not counted
  std::int64_t untimed_steps = 0;    // steps not included in elapsed_seconds
  ReadPosition position;             // of the next step
  std::optional<UpdateSizes> sizes;  // measured every 25th step, on the CPU only
};

struct ValidationReport {
  std::int64_t step = 0;
  Score score;
  bool best = false;
  bool last = false;    // final validation of the run
  std::string weights;  // which weights were scored: "raw", "swa" or "ema"
};

// Receives the events of a run; `thimble golf` writes its log from here.
//
// Called on the training thread, between steps. An exception it throws ends the run.
class TrainObserver {
 public:
  virtual ~TrainObserver() = default;

  virtual void primed(std::int64_t /*step*/, std::int64_t /*of*/) {}
  virtual void step(const StepReport& /*report*/) {}
  virtual void validating(std::int64_t /*tokens_scored*/) {}
  virtual void validation(const ValidationReport& /*report*/) {}
  virtual void saved(std::int64_t /*step*/) {}  // a checkpoint of this step was written
};

// Passes each event to several observers.
class Observers final : public TrainObserver {
 public:
  void add(TrainObserver* observer) {
    if (observer) list_.push_back(observer);
  }
  void primed(std::int64_t step, std::int64_t of) override {
    for (TrainObserver* observer : list_) observer->primed(step, of);
  }
  void step(const StepReport& report) override {
    for (TrainObserver* observer : list_) observer->step(report);
  }
  void validating(std::int64_t tokens_scored) override {
    for (TrainObserver* observer : list_) observer->validating(tokens_scored);
  }
  void validation(const ValidationReport& report) override {
    for (TrainObserver* observer : list_) observer->validation(report);
  }
  void saved(std::int64_t step) override {
    for (TrainObserver* observer : list_) observer->saved(step);
  }

 private:
  std::vector<TrainObserver*> list_;
};

// Facts that the trainer passes to Reporter::finish().
struct RunEnd {
  std::int64_t first_step = 0;  // of this call
  std::int64_t parameters = 0;
  std::uint64_t unique_tokens = 0;  // of the training set
  double wall_seconds = 0;          // of this call, from its first step on
  bool began_trained = false;       // with --init
  std::string divergence = {};      // why the run diverged; empty: it did not
};

class Reporter {
 public:
  // `history`: on resume, that of the earlier steps. `observer` may be null.
  Reporter(const Config& config, const Log& log, ProgressOutput progress, MetricsFile& metrics,
           RunHistory history, TrainObserver* observer = nullptr);

  // New run, before its first step: prints the data table and the recipe, writes the start event.
  void start(const RunContext& run, const BatchLoader& loader, std::int64_t parameters);
  // Resumed run: writes the resume event.
  void resume(std::int64_t step);

  // The live line shows training speed as a percentage of the machine's matrix product peak, once
  // the peak is known. measure_peak() measures it if the live line is on and the device is the CPU.
  void measure_peak(const Context& context, DType dtype);
  void set_peak(double flops_per_token, double peak_flops_per_second);

  void primed(std::int64_t step, std::int64_t of);
  void step(const StepReport& report);
  void validating(std::int64_t tokens_scored);
  void validation(const ValidationReport& report);
  void saved(std::int64_t step);
  void sample(std::int64_t step, const std::string& prompt, const std::string& text);

  // End of a call: fills in `result` from the history, adds the diagnosis and writes run.json.
  void finish(const RunContext& run, const RunEnd& end, TrainResult& result);

  void note(std::string_view line);  // prints above the live line
  void warn(std::string_view line);  // prints above the live line

  const RunHistory& history() const { return history_; }
  std::int64_t tokens() const { return tokens_; }  // in this call
  double seconds() const { return seconds_; }      // spent in steps, in this call
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
  std::string started_;  // start of this call, UTC
  ProgressOutput progress_;
  ProgressBar bar_;
  double noted_ = 0;  // time of the live line's last update
  std::int64_t tokens_ = 0;
  double seconds_ = 0;
  double peak_tokens_per_second_ = 0;  // 0: unknown
  std::optional<double> val_loss_;
  bool warned_of_wrap_ = false;  // warn only once that the data has wrapped around
};

// Resident memory of this process; 0: unknown.
std::int64_t resident_bytes();

// The techniques that are on, in one line: "Muon (weight decay 0.04), int8 QAT, SWA below 0.5 of
// the rate every 50 steps". Empty for plain training.
std::string recipe(const Config& config);

}  // namespace thimble
