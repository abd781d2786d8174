// Steps on a card: weights, gradients and moments live in its memory (optim/device_step.h).
#pragma once

#include "train/step_runner.h"

namespace thimble {

std::unique_ptr<StepRunner> make_card_step(const StepParts& parts);

}  // namespace thimble
