// What a run does beyond plain training, in a line: so that nobody has to wonder whether a technique was on.
#pragma once

#include <string>

#include "model/config.h"

namespace thimble {

// "Muon (weight decay 0.04), int8 QAT, SWA below 0.5 of the rate every 50 steps"; empty: nothing of the kind.
std::string recipe(const Config& config);

}  // namespace thimble
