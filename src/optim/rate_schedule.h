// Learning-rate schedules: the factor by which the rates of all groups are multiplied at a step.
//
//   linear   warm-up, then linear decay to min_lr at the end
//   cosine   warm-up, then half a cosine to min_lr
//   wsd      warm-up, constant, then linear decay to min_lr during the warm-down
//   golf     as wsd, but with a time limit only the time determines the warm-down, as in
//            parameter-golf's train_gpt.py
//
// Warm-up is (step + 1) / warmup_steps. Steps count from 0. A run ends at its last step or its time
// limit, and the schedule follows whichever comes first, so a run stopped by its time limit has
// also warmed down. `warmdown` is a number of steps (converted to time by the average step so far)
// or, below 1, a fraction of the run. `untimed_steps` is the number of steps before the clock was
// started.
#pragma once

#include <cstdint>

#include "config/config.h"

namespace thimble {

double rate_multiplier(const TrainConfig& config, std::int64_t step, double elapsed_seconds = 0,
                       std::int64_t untimed_steps = 0);

// Whether the run has reached `start`: a step or, below 1, a fraction of the run's steps or time.
bool has_begun(double start, const TrainConfig& config, std::int64_t step, double elapsed_seconds);

}  // namespace thimble
