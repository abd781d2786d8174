#include "train/history.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

#include "base/json.h"
#include "train/metrics_reader.h"

namespace thimble {

namespace {

constexpr std::size_t kMostPoints = 512;
constexpr std::size_t kSmoothedSteps = 50;
constexpr double kSpikeDeviations = 6, kSpikeNats = 0.25;  // a spike is above both

}  // namespace

void Series::add(double value) {
  last_sum_ += value;
  if (++in_last_ < per_point_) return;
  full_.push_back(last_sum_ / static_cast<double>(in_last_));
  last_sum_ = 0;
  in_last_ = 0;
  if (full_.size() < kMostPoints) return;
  for (std::size_t i = 0; i < kMostPoints / 2; ++i) full_[i] = (full_[2 * i] + full_[2 * i + 1]) / 2;
  full_.resize(kMostPoints / 2);
  per_point_ *= 2;
}

std::vector<double> Series::points() const {
  std::vector<double> points = full_;
  if (in_last_ > 0) points.push_back(last_sum_ / static_cast<double>(in_last_));
  return points;
}

bool RunHistory::is_spike(double loss) const {
  if (recent_.size() < kSmoothedSteps) return false;
  const double mean = smoothed_loss();
  double squares = 0;
  for (const StepRecord& record : recent_) squares += (record.loss - mean) * (record.loss - mean);
  const double deviation = std::sqrt(squares / static_cast<double>(recent_.size()));
  return loss > mean + std::max(kSpikeNats, kSpikeDeviations * deviation);
}

void RunHistory::add(const StepRecord& record) {
  ++steps_;
  seconds_ += record.seconds;
  input_seconds_ += record.input_seconds;
  skipped_ += record.skipped;
  if (record.skipped) return;
  spikes_ += is_spike(record.loss);
  clipped_ += record.clipped;
  losses_.add(record.loss);
  grad_norms_.add(record.grad_norm);
  recent_.push_back(record);
  if (recent_.size() > kSmoothedSteps) recent_.pop_front();
}

void RunHistory::add_validation(std::int64_t step, double loss) {
  validations_.push_back({step, loss});
}

double RunHistory::smoothed_loss() const {
  double sum = 0;
  for (const StepRecord& record : recent_) sum += record.loss;
  return recent_.empty() ? 0 : sum / static_cast<double>(recent_.size());
}

double RunHistory::lowest_latest_loss() const {
  if (recent_.empty()) return 0;
  const auto count = std::min<std::ptrdiff_t>(std::ssize(recent_), 10);
  return std::ranges::min_element(recent_.end() - count, recent_.end(), {}, &StepRecord::loss)->loss;
}

double RunHistory::smoothed_bits_per_byte() const {
  double nats = 0, bytes = 0;
  for (const StepRecord& record : recent_) {
    nats += record.loss * static_cast<double>(record.targets);
    bytes += static_cast<double>(record.bytes);
  }
  return bytes > 0 ? nats / std::numbers::ln2 / bytes : 0;
}

double RunHistory::bytes_per_token() const {
  double targets = 0, bytes = 0;
  for (const StepRecord& record : recent_) {
    targets += static_cast<double>(record.targets);
    bytes += static_cast<double>(record.bytes);
  }
  return targets > 0 ? bytes / targets : 0;
}

namespace {

StepRecord step_record(const StepLine& line) {
  return {.loss = line.loss,
          .targets = line.targets,
          .bytes = line.bytes,
          .grad_norm = line.grad_norm,
          .seconds = line.seconds,
          .input_seconds = line.input_seconds,
          .clipped = line.clipped};
}

StepRecord step_record(const Json& event) {
  StepRecord record{.targets = event.at("targets").as_int(),
                    .bytes = event.at("bytes").as_uint(),
                    .seconds = event.at("seconds").as_double(),
                    .input_seconds = event.at("input_seconds").as_double()};
  const Json* skipped = event.find("skipped");
  record.skipped = skipped && skipped->as_bool();
  if (record.skipped) return record;
  record.loss = event.at("loss").as_double();
  record.grad_norm = event.at("grad_norm").as_double();
  record.clipped = event.at("clipped").as_bool();
  return record;
}

}  // namespace

RunHistory read_history(const std::filesystem::path& metrics, std::int64_t last_step) {
  RunHistory history;
  for (MetricsReader reader(metrics); reader.next();) {
    if (const StepLine* line = reader.step_line()) {
      if (line->step > last_step) break;
      history.add(step_record(*line));
      continue;
    }
    const Json event = reader.event();
    if (event.at("step").as_int() > last_step) break;
    if (event.at("event").as_string() == "step")
      history.add(step_record(event));
    else if (event.at("event").as_string() == "validation")
      history.add_validation(event.at("step").as_int(), event.at("val_loss").as_double());
  }
  return history;
}

}  // namespace thimble
