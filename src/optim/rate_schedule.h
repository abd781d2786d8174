// Learning-rate schedules: what every group's rate is multiplied by at a step.
//
//   linear   warm-up, then a straight line to min_lr at the end
//   cosine   warm-up, then half a cosine to min_lr
//   wsd      warm-up, 1, then a straight line to min_lr over the warm-down
//   golf     wsd whose end is the time's alone where there is a time limit (parameter-golf 1.5: train_gpt.py)
//
// Warm-up is (step + 1) / warmup_steps. Steps count from 0. The end is that of the steps or of the time, whichever
// comes first: so a run that stops at its time limit has come down all the same. A warm-down counts steps (in time, by
// the average step so far) or, below 1, is a fraction of the whole. `untimed_steps` are those before the time was counted.
#pragma once

#include <cstdint>

#include "config/config.h"

namespace thimble {

double rate_multiplier(const TrainConfig& config, std::int64_t step, double elapsed_seconds = 0,
                       std::int64_t untimed_steps = 0);

// A setting that is a step or, below 1, a fraction of the run, be that of its steps or of its time: has it come?
bool has_begun(double start, const TrainConfig& config, std::int64_t step, double elapsed_seconds);

}  // namespace thimble
