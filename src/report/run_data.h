// A run as its folder tells it: what reports, plots and comparisons are made of. Any run will do: one that ended, one
// that was killed, one that another process is training just now.
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

// A list that stays short however much is added to it: each of its points stands for `span` added ones in a row. When
// there is no room left, neighbours become one and the span doubles: so no part of a run gets coarser than another.
//
//   merged(a, b)   one point for two in a row, b the later; a function beside Point
//
// The latest point is there as it was added, too, unless the last of the others has its step.
template <class Point>
class BoundedSeries {
 public:
  // `most`: an even number of points, the latest not counted.
  explicit BoundedSeries(std::size_t most) : most_(most) {
    check(most >= 2 && most % 2 == 0, "[bounded series] room for {} points, expected an even number", most);
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
  std::size_t span_ = 1, in_last_ = 0;  // in_last_: added ones that the last point stands for
};

// NaN where the file has no number.
struct StepFigures {
  double loss = 0, grad_norm = 0;
  double multiplier = 1;  // of the learning rates
  double seconds = 0;
};

// A step, or several in a row of a run that has many.
struct StepPoint {
  std::int64_t step = 0;   // the last of them
  std::int64_t steps = 1;  // that it stands for
  StepFigures mean, low, high;
  double elapsed = 0;  // seconds of steps until here, these included
};

struct ValidationPoint {
  std::int64_t step = 0;
  double loss = 0, bits_per_byte = 0;  // NaN: not known
  bool best = false;
  double elapsed = 0;  // seconds of steps
};

struct SampledStep {
  struct Said {
    std::string prompt, text;
  };
  std::int64_t step = 0;
  std::vector<Said> texts;
};

// For a BoundedSeries: means, the lowest and the highest of steps; the lower of two validations, so that the best
// stays; the earlier of two steps' texts.
StepPoint merged(const StepPoint& a, const StepPoint& b);
ValidationPoint merged(const ValidationPoint& a, const ValidationPoint& b);
SampledStep merged(const SampledStep& a, const SampledStep& b);

// What the loop said of the data before its first step.
struct StartFacts {
  std::int64_t parameters = 0;
  std::uint64_t documents = 0, tokens = 0, bytes = 0, val_tokens = 0;  // 0: not known
};

// How the last call that ended did, as run.json says it.
struct RecordedStatus {
  std::string name = "unfinished";       // to be shown, whatever the file says
  std::optional<RunStatus> status = {};  // nothing: no call has ended yet, or the name is of another version
};

struct RunData {
  std::filesystem::path folder;
  std::optional<Config> config = {};
  std::optional<StartFacts> start = {};
  std::vector<StepPoint> steps = {};              // all of them, or evenly merged; the last one is there
  std::vector<double> last_losses = {};           // of the last 50 steps, each
  std::vector<ValidationPoint> validations = {};  // all, or evenly the lowest; the last one is there
  std::vector<SampledStep> samples = {};          // all, or evenly some; the last one is there
  Json data = {};                                 // data.json; null: there is none
  Json record = {};                               // run.json; null: the first call has not ended
  std::vector<std::pair<std::string, std::uint64_t>> files = {};  // name and bytes of models and artifacts

  std::string name() const;  // of the folder
  RecordedStatus status() const;
  double tokens_at(std::int64_t step) const;
  double seconds() const { return steps.empty() ? 0 : steps.back().elapsed; }
  double tokens_per_second() const;  // over all steps; 0: not known
  double final_train_loss() const;   // of last_losses; NaN without any
  const ValidationPoint* best_validation() const;
};

// Follows a folder that may grow meanwhile. metrics.jsonl is read once: refresh() takes only what is new, and starts
// over where a resumed run has dropped lines. What is kept does not grow with the run: neither a page that is drawn
// every second for days nor the report of millions of steps needs more than a picture can show.
class RunFollower {
 public:
  static constexpr std::size_t kMostPoints = 5000;

  // `most_points`: of steps and of validations, each; an even number.
  explicit RunFollower(std::filesystem::path folder, std::size_t most_points = kMostPoints);

  // A folder without a run yet is empty data; files that no run of ours could hold are an Error.
  const RunData& refresh();
  const RunData& data() const { return data_; }

 private:
  // All that metrics.jsonl told so far.
  struct Told {
    explicit Told(std::size_t most_points);

    MetricsReader::Place place;
    std::optional<StartFacts> start;
    BoundedSeries<StepPoint> steps;
    std::vector<double> last_losses;
    BoundedSeries<ValidationPoint> validations;
    BoundedSeries<SampledStep> samples;
    SampledStep latest_sample;  // to which more texts may come
    std::int64_t step = -1;     // the last that was made
    double elapsed = 0;

    void take(const MetricsReader& reader);
    void take_step(std::int64_t number, const StepFigures& figures);
    void take_validation(const Json& event);
    void take_sample(const Json& event);
  };

  void read_metrics();

  std::size_t most_points_;
  Told told_;
  RunData data_;
};

// A folder without metrics.jsonl is an Error.
RunData read_run(const std::filesystem::path& folder);

}  // namespace thimble
