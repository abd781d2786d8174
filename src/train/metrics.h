// metrics.jsonl: one object a line for every event of a run. It is also the run's lock: whoever has it open
// trains there alone.
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
  // A process that has it open already is an Error. What the file holds stays until keep_until().
  MetricsFile(FileOps& ops, std::filesystem::path path);
  ~MetricsFile();
  MetricsFile(const MetricsFile&) = delete;
  MetricsFile& operator=(const MetricsFile&) = delete;

  // Keeps the lines up to and including `step` (-1: none) and drops the rest: what happened after the
  // checkpoint will happen again. A line that a kill cut short goes too. `validated` false: so does what was said of
  // that step's validation, which is still to come.
  void keep_until(std::int64_t step, bool validated = true);
  void add(const Json& event);  // {"event": "step", "step": 12, ...}
  void flush();                 // to the disk: a checkpoint's own past must not be lost

 private:
  FileOps& ops_;
  std::filesystem::path path_;
  FileHandle file_;
};

// metrics.jsonl, read: whole lines one after the other, in bounded memory however many millions there are.
//
//   MetricsReader reader(run / "metrics.jsonl");
//   while (reader.next())
//     if (const StepLine* step = reader.step_line()) ... else reader.event() ...
// A step as the reporter writes it: nearly every line of a file.
struct StepLine {
  std::int64_t step = 0;
  double loss = 0;
  std::int64_t targets = 0;
  std::uint64_t bytes = 0;
  double multiplier = 0, grad_norm = 0;
  bool clipped = false;
  double seconds = 0, input_seconds = 0;
};

// Takes a tenth of parse_json's time, which is what a run of millions of steps is made of. Nothing where the line is not
// laid out just so: it may still be a step, and parse_json says what it is.
std::optional<StepLine> step_in(std::string_view line);

class MetricsReader {
 public:
  struct Place {
    std::uint64_t offset = 0;  // bytes
    std::uint64_t lines = 0;
  };

  explicit MetricsReader(const std::filesystem::path& path) : MetricsReader(path, Place{}) {}
  MetricsReader(const std::filesystem::path& path, Place from);  // `from`: a place() of before

  // False: there is no further line, or none that is whole yet.
  bool next();
  const StepLine* step_line() const { return step_line_ ? &*step_line_ : nullptr; }
  Json event() const;         // the line as JSON; an Error, with the line's number, where it is none
  std::int64_t step() const;  // that the line belongs to; the same Error
  Place place() const { return place_; }  // behind the line

 private:
  void read_more();

  InputFile file_;
  std::string buffer_;  // of the file, from `line_start_` on not yet handed out
  std::size_t line_start_ = 0, line_size_ = 0;
  std::uint64_t read_to_ = 0;  // of the file
  Place place_;
  std::optional<StepLine> step_line_;
  bool endless_ = false;  // longer than any line of ours
};

// What has happened so far, in bounded memory: for the live line, the spark-line and the closing diagnosis. After a
// resume it is rebuilt from metrics.jsonl, so that a run that was stopped reports as one that was not.
// Any number of values as at most 512 means of equally many.
class Series {
 public:
  void add(double value);
  std::vector<double> points() const;  // the last may be the mean of fewer

 private:
  std::vector<double> full_;
  std::size_t per_point_ = 1, in_last_ = 0;
  double last_sum_ = 0;
};

struct StepRecord {
  double loss = 0;
  std::int64_t targets = 0;
  std::uint64_t bytes = 0;  // of text, that the targets stand for
  double grad_norm = 0;
  double seconds = 0, input_seconds = 0;
  bool clipped = false;
  bool skipped = false;  // its gradient overflowed: it taught nothing, and its figures may not be numbers
};

class RunHistory {
 public:
  void add(const StepRecord& record);
  void add_validation(std::int64_t step, double loss);

  std::int64_t steps() const { return steps_; }
  double smoothed_loss() const;           // mean over the last 50 steps; 0 before the first
  double lowest_latest_loss() const;      // of the last 10; 0 before the first
  double smoothed_bits_per_byte() const;  // of the same; 0 where there are no bytes
  double bytes_per_token() const;         // of them; 0 before the first
  const Series& losses() const { return losses_; }
  const Series& grad_norms() const { return grad_norms_; }
  std::int64_t spikes() const { return spikes_; }  // losses far above the 50 before them
  std::int64_t clipped() const { return clipped_; }
  std::int64_t skipped() const { return skipped_; }
  double seconds() const { return seconds_; }
  double input_seconds() const { return input_seconds_; }

  struct Validation {
    std::int64_t step = 0;
    double loss = 0;
  };
  std::span<const Validation> validations() const { return validations_; }

 private:
  bool is_spike(double loss) const;

  std::deque<StepRecord> recent_;
  std::int64_t steps_ = 0, spikes_ = 0, clipped_ = 0, skipped_ = 0;
  double seconds_ = 0, input_seconds_ = 0;
  Series losses_, grad_norms_;
  std::vector<Validation> validations_;
};

// From a metrics.jsonl that metrics.h wrote; nothing that came after `last_step`.
RunHistory read_history(const std::filesystem::path& metrics,
                        std::int64_t last_step = std::numeric_limits<std::int64_t>::max());

}  // namespace thimble
