// The layers in the order in which a token passes them: 0, 1, 2, ... and, where a loop is on, its layers once more each
// time before it goes on (parameter-golf 2.17). Loops of 4 to 5, twice, in 8 layers: 0 1 2 3 4 5 4 5 4 5 6 7.
//
// Weights and constants are those of the layer, whichever pass it is. Skips pair the passes of the two halves, and the
// KV cache has a place for each.
#pragma once

#include <vector>

#include "model/params.h"

namespace thimble {

std::vector<int> layer_order(const ModelConfig& config);

// Elements of the matrices that a token is multiplied with, a looped layer's each time; without the head's.
std::int64_t multiplied_elements(const ModelConfig& config, const ParamTable& params);

}  // namespace thimble
