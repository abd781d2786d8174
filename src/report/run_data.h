// Reads the data of a run from its folder, for reports, plots and comparisons. Works for finished
// and killed runs and for runs that another process is training.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "config/config.h"
#include "train/metrics.h"
#include "train/run_folder.h"

namespace thimble {

// A list of points with bounded size. Each stored point combines `span` consecutive added points.
// When the list is full, adjacent points are merged and the span doubles, so the resolution is
// the same over the complete run.
//
//   merged(a, b)   combines two consecutive points, b the later; a free function next to Point
//
// points() also contains the latest point unmerged, unless the last stored point has the same step.
template <class Point>
class BoundedSeries {
 public:
  // `most`: maximum number of stored points, even; the latest point is not counted.
  explicit BoundedSeries(std::size_t most) : most_(most) {
    check(most >= 2 && most % 2 == 0, "[bounded series] the capacity must be even, got {}", most);
  }

  void add(Point point) {
    latest_ = point;
    if (in_last_ == span_ && points_.size() == most_) halve();
    if (points_.empty() || in_last_ == span_) {
      points_.push_back(std::move(point));
      in_last_ = 1;
    } else {
      points_.back() = merged(points_.back(), point);
      ++in_last_;
    }
  }

  std::vector<Point> points() const {
    std::vector<Point> points = points_;
    if (latest_ && latest_->step != points.back().step) points.push_back(*latest_);
    return points;
  }

 private:
  void halve() {
    for (std::size_t i = 0; i < most_ / 2; ++i) points_[i] = merged(points_[2 * i], points_[2 * i + 1]);
    points_.resize(most_ / 2);
    span_ *= 2;
    in_last_ = span_;
  }

  std::vector<Point> points_;
  std::optional<Point> latest_;
  std::size_t most_;
  std::size_t span_ = 1, in_last_ = 0;  // in_last_: added points in the last stored point
};

// Metrics of a step. NaN if the file contains no number.
struct StepFigures {
  double loss = 0, grad_norm = 0;
  double multiplier = 1;  // of the learning rates
  double seconds = 0;
};

// One step, or several consecutive steps of a long run.
struct StepPoint {
  std::int64_t step = 0;   // the last one
  std::int64_t steps = 1;  // number of steps
  StepFigures mean, low, high;
  double elapsed = 0;  // total seconds of all steps up to and including these
};

struct ValidationPoint {
  std::int64_t step = 0;
  double loss = 0, bits_per_byte = 0;  // NaN: unknown
  bool best = false;
  double elapsed = 0;  // total seconds of the steps before it
};

struct SampledStep {
  struct Text {
    std::string prompt, text;
  };
  std::int64_t step = 0;
  std::vector<Text> texts;
};

// Merge functions for BoundedSeries. Steps: mean, minimum and maximum. Validations: the one with
// the lower loss, to keep the best. Samples: the earlier one.
StepPoint merged(const StepPoint& a, const StepPoint& b);
ValidationPoint merged(const ValidationPoint& a, const ValidationPoint& b);
SampledStep merged(const SampledStep& a, const SampledStep& b);

// The sizes of model and data that the training loop logs before its first step.
struct StartFacts {
  std::int64_t parameters = 0;
  std::uint64_t documents = 0, tokens = 0, bytes = 0, val_tokens = 0;  // 0: unknown
};

// Status of the last completed call of `thimble train`, from run.json.
struct RecordedStatus {
  std::string name = "unfinished";       // for display, even if it is not a known status
  std::optional<RunStatus> status = {};  // nullopt: no call has completed, or the name is unknown
};

struct RunData {
  std::filesystem::path folder;
  std::optional<Config> config = {};
  std::optional<StartFacts> start = {};
  std::vector<StepPoint> steps = {};              // all, or evenly merged; includes the last step
  std::vector<double> last_losses = {};           // of each of the last 50 steps
  std::vector<ValidationPoint> validations = {};  // all, or the best of each interval
  std::vector<SampledStep> samples = {};          // all, or evenly spaced ones; includes the last
  Json data = {};                                 // data.json; null: no such file
  Json record = {};                               // run.json; null: no completed call
  std::vector<std::pair<std::string, std::uint64_t>> files =
      {};  // name and size of checkpoints, artifacts and exports

  std::string name() const;  // of the folder
  RecordedStatus status() const;
  // The command line of each recorded call, without repetitions. Earlier versions recorded none.
  std::vector<std::string> commands() const;
  double tokens_at(std::int64_t step) const;
  double seconds() const { return steps.empty() ? 0 : steps.back().elapsed; }
  double tokens_per_second() const;  // over all steps; 0: unknown
  double final_train_loss() const;   // mean of last_losses; NaN if empty
  const ValidationPoint* best_validation() const;
};

// Reads a run's folder repeatedly while training continues. refresh() reads only the new part of
// metrics.jsonl, or the complete file again if a resumed run has removed lines. Memory is bounded:
// it does not grow with the number of steps.
class RunFollower {
 public:
  static constexpr std::size_t kMostPoints = 5000;

  // `most_points`: maximum number of step points and of validation points; must be even.
  explicit RunFollower(std::filesystem::path folder, std::size_t most_points = kMostPoints);

  // Returns empty data if the folder does not contain a run yet. Throws if a file is invalid.
  const RunData& refresh();
  const RunData& data() const { return data_; }

 private:
  // Everything read from metrics.jsonl so far.
  struct MetricsState {
    explicit MetricsState(std::size_t most_points);

    MetricsReader::Place place;
    std::optional<StartFacts> start;
    BoundedSeries<StepPoint> steps;
    std::vector<double> last_losses;
    BoundedSeries<ValidationPoint> validations;
    BoundedSeries<SampledStep> samples;
    SampledStep latest_sample;  // not in `samples` yet, because more texts of its step may follow
    std::int64_t step = -1;     // last step read
    double elapsed = 0;

    void take(const MetricsReader& reader);
    void take_step(std::int64_t number, const StepFigures& figures);
    void take_validation(const Json& event);
    void take_sample(const Json& event);
  };

  void read_metrics();

  std::size_t most_points_;
  MetricsState state_;
  RunData data_;
};

// Throws if the folder contains no metrics.jsonl.
RunData read_run(const std::filesystem::path& folder);

}  // namespace thimble
