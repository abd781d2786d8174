// What has happened so far, in bounded memory: for the live line, the spark-line and the closing diagnosis. After a
// resume it is rebuilt from metrics.jsonl, so that a run that was stopped reports as one that was not.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <limits>
#include <span>
#include <vector>

namespace thimble {

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
