// One dial: --depth N makes a preset deeper or shallower and derives the rest from the preset's own
// proportions, so that the preset's own depth gives the preset.
//
//   dim           layers x (preset dim / layers), to the nearest multiple of head_dim x heads / kv_heads
//   heads         dim / head_dim;  kv_heads in the preset's ratio;  mlp_hidden too, up to a multiple of 64
//   batch_tokens  grows with parameters^0.383, in powers of two (nanochat: the best batch follows the data,
//                 and the data follows the parameters)
//   rates         x sqrt(batch ratio); Adam's embeddings and head also x sqrt(preset dim / dim), its matrices
//                 x preset dim / dim (muP). Muon's steps have the same size at any width: no more factors.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/builder.h"

namespace thimble {

inline constexpr std::int64_t kMaxDepth = 1024;

// Call it last: keys that the user gave stay, and what is derived from them follows. Returns one line for
// each derivation: "dim = 640: 12 layers x 512/9, to the nearest multiple of 128".
std::vector<std::string> apply_depth(ConfigBuilder& settings, std::int64_t depth);

}  // namespace thimble
