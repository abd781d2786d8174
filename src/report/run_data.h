// A run as its folder tells it: what reports, plots and comparisons are made of. Any run will do: one that ended, one
// that was killed, one that another process is training just now.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "model/config.h"

namespace thimble {

struct StepPoint {
  std::int64_t step = 0;
  double loss = 0, grad_norm = 0;  // NaN where the file has no number
  double multiplier = 1;           // of the learning rates
  double seconds = 0;
  double elapsed = 0;  // seconds of steps until here, this one included
};

struct ValidationPoint {
  std::int64_t step = 0;
  double loss = 0, bits_per_byte = 0;  // NaN: not known
  bool best = false;
  double elapsed = 0;  // seconds of steps
};

struct SamplePoint {
  std::int64_t step = 0;
  std::string prompt, text;
};

// What the loop said of the data before its first step.
struct StartFacts {
  std::int64_t parameters = 0;
  std::uint64_t documents = 0, tokens = 0, bytes = 0, val_tokens = 0;  // 0: not known
};

struct RunData {
  std::filesystem::path folder;
  std::optional<Config> config = {};
  std::optional<StartFacts> start = {};
  std::vector<StepPoint> steps = {};
  std::vector<ValidationPoint> validations = {};
  std::vector<SamplePoint> samples = {};
  Json data = {};    // data.json; null: there is none
  Json record = {};  // run.json; null: the first call has not ended
  std::vector<std::pair<std::string, std::uint64_t>> files = {};  // name and bytes of models and artifacts

  std::string name() const;    // of the folder
  std::string status() const;  // of the last call that ended: "completed", ...; "unfinished" before that
  double tokens_at(std::int64_t step) const;
  double seconds() const { return steps.empty() ? 0 : steps.back().elapsed; }
  double tokens_per_second() const;  // over all steps; 0: not known
  double final_train_loss() const;   // mean of the last 50 steps; NaN without any
  const ValidationPoint* best_validation() const;
};

// Follows a folder that may grow meanwhile. metrics.jsonl is read once: refresh() takes only what is new, and starts
// over where a resumed run has dropped lines.
class RunFollower {
 public:
  // `most_points`: of steps and of validations, each; when there are more, the older ones are thinned out, but no
  // spike and no best one. A page that is drawn every second for days must not grow with the run.
  explicit RunFollower(std::filesystem::path folder,
                       std::size_t most_points = std::numeric_limits<std::size_t>::max());

  // A folder without a run yet is empty data; files that no run of ours could hold are an Error.
  const RunData& refresh();
  const RunData& data() const { return data_; }

 private:
  void read_metrics();
  void forget_metrics();
  bool fits(const std::string& line) const;  // behind what was read; else the past was rewritten
  void take(const Json& event);

  RunData data_;
  std::size_t most_points_;
  std::uint64_t offset_ = 0;
};

// A folder without metrics.jsonl is an Error.
RunData read_run(const std::filesystem::path& folder);

}  // namespace thimble
