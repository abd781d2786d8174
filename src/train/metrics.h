// metrics.jsonl: one JSON object per line for every event of a run. The file also serves as the
// run's lock: only the process that has it open may train in the folder.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file_ops.h"
#include "base/files.h"
#include "base/json.h"

namespace thimble {

class MetricsFile {
 public:
  // Throws Error if another process has the file open. The content is kept until keep_until().
  MetricsFile(FileOps& ops, std::filesystem::path path);
  ~MetricsFile();
  MetricsFile(const MetricsFile&) = delete;
  MetricsFile& operator=(const MetricsFile&) = delete;

  // Keeps the lines up to and including `step` (-1: none). Later lines are removed, because a
  // resumed run repeats those steps. An incomplete last line is removed too. With `validated`
  // false, the validation events of `step` are also removed: that validation is repeated.
  void keep_until(std::int64_t step, bool validated = true);
  void add(const Json& event);  // {"event": "step", "step": 12, ...}
  void flush();                 // fsync, so that no event before a checkpoint is lost

 private:
  FileOps& ops_;
  std::filesystem::path path_;
  FileHandle file_;
};

// A "step" event as the reporter writes it: nearly every line of a file.
struct StepLine {
  std::int64_t step = 0;
  double loss = 0;
  std::int64_t targets = 0;
  std::uint64_t bytes = 0;
  double multiplier = 0, grad_norm = 0;
  bool clipped = false;
  double seconds = 0, input_seconds = 0;
};

// Ten times faster than parse_json, which matters for runs of millions of steps. Returns nullopt if
// the line does not have exactly the reporter's layout; parse_json may still read it as a step.
std::optional<StepLine> step_in(std::string_view line);

// Reads the complete lines of metrics.jsonl one by one, in bounded memory.
//
//   MetricsReader reader(run / "metrics.jsonl");
//   while (reader.next())
//     if (const StepLine* step = reader.step_line()) ... else reader.event() ...
class MetricsReader {
 public:
  struct Place {
    std::uint64_t offset = 0;  // bytes
    std::uint64_t lines = 0;
  };

  explicit MetricsReader(const std::filesystem::path& path) : MetricsReader(path, Place{}) {}
  MetricsReader(const std::filesystem::path& path, Place from);  // `from`: an earlier place()

  // Returns false if there is no further complete line (yet).
  bool next();
  const StepLine* step_line() const { return step_line_ ? &*step_line_ : nullptr; }
  Json event() const;         // the line as JSON; throws an Error with the line number if it is not JSON
  std::int64_t step() const;  // the line's step; same Error
  Place place() const { return place_; }  // just after the line

 private:
  void read_more();

  InputFile file_;
  std::string buffer_;  // bytes read from the file; the current line starts at `line_start_`
  std::size_t line_start_ = 0, line_size_ = 0;
  std::uint64_t read_to_ = 0;  // file offset of the end of `buffer_`
  Place place_;
  std::optional<StepLine> step_line_;
  bool oversized_ = false;  // the line exceeds the size limit
};

// Compresses any number of values into at most 512 means of equally many values each.
class Series {
 public:
  void add(double value);
  std::vector<double> points() const;  // the last one may be a mean of fewer values

 private:
  std::vector<double> full_;
  std::size_t per_point_ = 1, in_last_ = 0;
  double last_sum_ = 0;
};

// How a call of `train` uses the CPU: what changes the last bits of results besides the settings.
struct CpuUse {
  std::int64_t threads = 0;
  std::string level;  // base/machine.h

  static CpuUse now();
  static std::optional<CpuUse> from(const Json& record);  // of "threads" and "cpu_level"; nullopt: absent
  std::string text() const;                               // "2 threads at CPU level avx2"
  bool operator==(const CpuUse&) const = default;
};

struct StepRecord {
  double loss = 0;
  std::int64_t targets = 0;
  std::uint64_t bytes = 0;  // bytes of text in the targets
  double grad_norm = 0;
  double seconds = 0, input_seconds = 0;
  bool clipped = false;
  bool skipped = false;  // the gradient overflowed: no update was made, and loss or norm may be NaN
};

// Statistics of the run so far, in bounded memory, for the live line, its sparkline and the final
// diagnosis. On resume it is rebuilt from metrics.jsonl, so interruptions do not change the
// reports.
class RunHistory {
 public:
  void add(const StepRecord& record);
  void add_validation(std::int64_t step, double loss);
  void add_call(std::optional<CpuUse> cpu_use);  // a start or a resume

  std::int64_t steps() const { return steps_; }
  double smoothed_loss() const;           // mean over the last 50 steps; 0 before the first
  double lowest_latest_loss() const;      // minimum of the last 10 steps; 0 before the first
  double smoothed_bits_per_byte() const;  // over the last 50 steps; 0 if they have no bytes
  double bytes_per_token() const;         // over the last 50 steps; 0 before the first
  const Series& losses() const { return losses_; }
  const Series& grad_norms() const { return grad_norms_; }
  std::int64_t spikes() const { return spikes_; }  // losses far above the mean of the previous 50
  std::int64_t clipped() const { return clipped_; }
  std::int64_t skipped() const { return skipped_; }
  double seconds() const { return seconds_; }
  double input_seconds() const { return input_seconds_; }

  struct Validation {
    std::int64_t step = 0;
    double loss = 0;
  };
  std::span<const Validation> validations() const { return validations_; }
  // Of the latest call; nullopt if an earlier version wrote the file.
  const std::optional<CpuUse>& cpu_use() const { return cpu_use_; }

 private:
  bool is_spike(double loss) const;

  std::deque<StepRecord> recent_;
  std::int64_t steps_ = 0, spikes_ = 0, clipped_ = 0, skipped_ = 0;
  double seconds_ = 0, input_seconds_ = 0;
  Series losses_, grad_norms_;
  std::vector<Validation> validations_;
  std::optional<CpuUse> cpu_use_;
};

// Follows the training loss to detect divergence. Part of the training state, so a resumed run
// decides as an uninterrupted one.
//
// A loss is high if it is more than 1.5 times the lowest smoothed loss and more than 1 nat above
// it. Twenty high losses in a row are a divergence; spikes that recover are shorter. At the end of
// a run five are enough, because no steps are left to recover in.
struct LossTrend {
  std::int64_t steps = 0;       // losses added
  double smoothed = 0;          // mean over about the last 20
  double lowest = 0;            // of `smoothed`
  std::int64_t high_steps = 0;  // the number of high losses since the last one that was not

  void add(double loss);
  double limit() const;  // losses above it are high
  bool has_diverged(bool at_the_end) const;
  std::string text() const;  // "the loss was above 8.34 for 20 steps; ..."

  bool operator==(const LossTrend&) const = default;
};

// Reads a metrics.jsonl up to and including `last_step`.
RunHistory read_history(const std::filesystem::path& metrics,
                        std::int64_t last_step = std::numeric_limits<std::int64_t>::max());

}  // namespace thimble
