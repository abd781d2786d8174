#include "optim/rate_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace thimble {

namespace {

// Maps shape 0 to min_lr and shape 1 to 1.
double above_minimum(const TrainConfig& config, double shape) {
  return config.min_lr + (1 - config.min_lr) * shape;
}

double part_left(double left, double length) {
  return length <= 0 || left > length ? 1 : std::max(left, 0.0) / length;
}

double warmdown_by_steps(const TrainConfig& config, std::int64_t step) {
  const auto steps = static_cast<double>(config.steps);
  const double length = config.warmdown < 1 ? config.warmdown * steps : config.warmdown;
  return part_left(steps - static_cast<double>(step), length);
}

double warmdown_by_time(const TrainConfig& config, std::int64_t timed_steps, double elapsed) {
  const double step_seconds = elapsed / static_cast<double>(std::max<std::int64_t>(timed_steps, 1));
  const double length =
      config.warmdown < 1 ? config.warmdown * config.max_seconds : config.warmdown * step_seconds;
  return part_left(std::max(config.max_seconds - elapsed, 0.0), length);
}

// The completed fraction of the run after its warm-up, from 0 to 1.
double progress(const TrainConfig& config, std::int64_t step, std::int64_t warmup, double elapsed) {
  double done = 0;
  if (config.steps > 0)
    done = static_cast<double>(step - warmup) /
           static_cast<double>(std::max<std::int64_t>(config.steps - warmup, 1));
  if (config.max_seconds > 0) done = std::max(done, elapsed / config.max_seconds);
  return std::clamp(done, 0.0, 1.0);
}

}  // namespace

double rate_multiplier(const TrainConfig& config, std::int64_t step, double elapsed_seconds,
                       std::int64_t untimed_steps) {
  const std::int64_t warmup =
      config.steps > 0 ? std::min(config.warmup_steps, config.steps) : config.warmup_steps;
  if (step < warmup) return static_cast<double>(step + 1) / static_cast<double>(warmup);
  const bool timed = config.max_seconds > 0;
  const std::int64_t timed_steps = step - untimed_steps;
  const double done = progress(config, step, warmup, elapsed_seconds);
  double shape = 1;
  switch (config.schedule) {
    case ScheduleKind::linear:
      shape = 1 - done;
      break;
    case ScheduleKind::cosine:
      shape = 0.5 + 0.5 * std::cos(std::numbers::pi * done);
      break;
    case ScheduleKind::wsd:
      if (config.steps > 0) shape = warmdown_by_steps(config, step);
      if (timed) shape = std::min(shape, warmdown_by_time(config, timed_steps, elapsed_seconds));
      break;
    case ScheduleKind::golf:
      shape =
          timed ? warmdown_by_time(config, timed_steps, elapsed_seconds) : warmdown_by_steps(config, step);
      break;
  }
  return above_minimum(config, shape);
}

bool has_begun(double start, const TrainConfig& config, std::int64_t step, double elapsed_seconds) {
  return start < 1 ? progress(config, step, 0, elapsed_seconds) >= start : static_cast<double>(step) >= start;
}

}  // namespace thimble
