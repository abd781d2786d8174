// --depth N scales a preset to N layers and derives the other settings from the preset's
// proportions. At the preset's own depth nothing changes.
//
//   dim           N x (the preset's dim / layers), to the nearest multiple of
//                 head_dim x heads / kv_heads
//   heads         dim / head_dim
//   kv_heads      in the preset's ratio to heads
//   mlp_hidden    in the preset's ratio to dim, rounded up to a multiple of 64
//   batch_tokens  grows with parameters^0.383, in powers of two (as in nanochat: the best batch
//                 size follows the amount of data, which follows the number of parameters)
//   rates         x sqrt(batch ratio). With Adam, embedding and head also x sqrt(preset dim / dim),
//                 and matrices x preset dim / dim (muP). Muon's update size does not depend on the
//                 width.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/builder.h"

namespace thimble {

inline constexpr std::int64_t kMaxDepth = 1024;

// Call it after all user settings have been applied: keys given by the user are kept, and derived
// settings follow them. Returns one line per setting, such as
// "dim = 640: 12 layers x 512/9, to the nearest multiple of 128".
std::vector<std::string> apply_depth(ConfigBuilder& settings, std::int64_t depth);

}  // namespace thimble
