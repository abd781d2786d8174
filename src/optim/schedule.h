// Learning-rate schedules: what every group's rate is multiplied by at a step.
//
//   linear   warm-up, then a straight line to min_lr at the last step
//   cosine   warm-up, then half a cosine to min_lr
//   wsd      warm-up, 1, then a straight line to min_lr over the warm-down
//   golf     1, then a straight line to min_lr over the warm-down, which is counted in wallclock when there is a limit
//            (parameter-golf 1.5: the warm-down's steps are turned into time by the average step so far)
//
// Warm-up is (step + 1) / warmup_steps. Steps count from 0.
#pragma once

#include <cstdint>

#include "model/config.h"

namespace thimble {

double rate_multiplier(const TrainConfig& config, std::int64_t step, double elapsed_seconds = 0);

// Muon's momentum warms up on a line from muon_momentum_start to muon_momentum over muon_momentum_steps.
double muon_momentum_at(const TrainConfig& config, std::int64_t step);

}  // namespace thimble
