#include "optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace thimble {

namespace {

double warmdown_steps(const TrainConfig& config) {
  return config.warmdown < 1 ? config.warmdown * static_cast<double>(config.steps) : config.warmdown;
}

// 1 at progress 0, min_lr at progress 1.
double down_to_minimum(const TrainConfig& config, double shape) {
  return config.min_lr + (1 - config.min_lr) * shape;
}

double warmdown_by_steps(const TrainConfig& config, std::int64_t step) {
  const double length = warmdown_steps(config), left = static_cast<double>(config.steps - step);
  if (length <= 0 || left > length) return 1;
  return down_to_minimum(config, std::max(left, 0.0) / length);
}

double warmdown_by_time(const TrainConfig& config, std::int64_t step, double elapsed) {
  const double left = std::max(config.max_seconds - elapsed, 0.0);
  const double step_seconds = elapsed / static_cast<double>(std::max<std::int64_t>(step, 1));
  const double length =
      config.warmdown < 1 ? config.warmdown * config.max_seconds : config.warmdown * step_seconds;
  if (length <= 0 || left > length) return 1;
  return down_to_minimum(config, left / length);
}

}  // namespace

double rate_multiplier(const TrainConfig& config, std::int64_t step, double elapsed_seconds) {
  const std::int64_t warmup = std::min(config.warmup_steps, config.steps);
  if (step < warmup) return static_cast<double>(step + 1) / static_cast<double>(warmup);
  const double progress =
      std::clamp(static_cast<double>(step - warmup) /
                     static_cast<double>(std::max<std::int64_t>(config.steps - warmup, 1)),
                 0.0, 1.0);
  switch (config.schedule) {
    case ScheduleKind::linear:
      return down_to_minimum(config, 1 - progress);
    case ScheduleKind::cosine:
      return down_to_minimum(config, 0.5 + 0.5 * std::cos(std::numbers::pi * progress));
    case ScheduleKind::wsd:
      return warmdown_by_steps(config, step);
    case ScheduleKind::golf:
      break;
  }
  return config.max_seconds > 0 ? warmdown_by_time(config, step, elapsed_seconds)
                                : warmdown_by_steps(config, step);
}

double muon_momentum_at(const TrainConfig& config, std::int64_t step) {
  if (config.muon_momentum_steps <= 0) return config.muon_momentum;
  const double share =
      std::min(1.0, static_cast<double>(step) / static_cast<double>(config.muon_momentum_steps));
  return (1 - share) * config.muon_momentum_start + share * config.muon_momentum;
}

}  // namespace thimble
