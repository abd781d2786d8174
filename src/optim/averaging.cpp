#include "optim/averaging.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/parallel.h"

namespace thimble {

namespace {

constexpr std::int64_t kAveragedPerTask = 16384;

// average += share (weights - average)
void move_towards(std::span<float> average, std::span<const float> weights, double share) {
  check(average.size() == weights.size(), "[averaging] got {} weights for an average of {}", weights.size(),
        average.size());
  const auto by = static_cast<float>(share);
  parallel_for(static_cast<std::int64_t>(average.size()), kAveragedPerTask,
               [&](std::int64_t begin, std::int64_t end) {
                 for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i)
                   average[i] += by * (weights[i] - average[i]);
               });
}

}  // namespace

Averaging::Averaging(const TrainConfig& config, std::int64_t block_size)
    : config_(config),
      average_(on() ? block_size : 0, "the averaged weights", "leave out swa_start or ema_decay") {}

std::string_view Averaging::kind() const {
  if (!available()) return "raw";
  return config_.ema_decay > 0 ? "ema" : "swa";
}

void Averaging::begin(std::span<const float> weights) {
  if (config_.ema_decay == 0) return;
  std::ranges::copy(weights, average().begin());
  count_ = 1;
}

bool Averaging::restart_averaging(double multiplier) {
  if (config_.ema_decay > 0 || multiplier < config_.swa_start) return false;
  return std::exchange(count_, 0) > 0;
}

bool Averaging::counts(std::int64_t step, double multiplier) const {
  if (config_.ema_decay > 0) return true;
  // During warm-up the rate is also below the threshold, but those weights are not worth averaging.
  const bool falling = step > config_.warmup_steps && multiplier < config_.swa_start;
  return falling && step % config_.swa_every == 0;
}

void Averaging::add(std::int64_t step, double multiplier, std::span<const float> weights) {
  if (!counts(step, multiplier)) return;
  if (config_.ema_decay > 0) return move_towards(average(), weights, 1 - config_.ema_decay);
  ++count_;
  // The first weights are copied: the block may contain an old average, and x + (w - x) may
  // differ from w.
  if (count_ == 1)
    std::ranges::copy(weights, average().begin());
  else
    move_towards(average(), weights, 1.0 / static_cast<double>(count_));
}

AverageInPlace::AverageInPlace(const Averaging& averaging, std::span<float> weights) {
  if (!averaging.available()) return;
  average_ = averaging.average();
  weights_ = weights;
  std::swap_ranges(average_.begin(), average_.end(), weights_.begin());
}

AverageInPlace::~AverageInPlace() {
  std::swap_ranges(average_.begin(), average_.end(), weights_.begin());
}

}  // namespace thimble
