// How many bytes packed weights will take, without compressing them all.
//
// A compressor that knows nothing but how often each byte occurs needs its entropy, and on trained weights zstd comes out
// within about 1 % of it, block by block (tensor_groups.h). Counting is some hundred times as fast as zstd-22, which makes
// it possible to look for a rule that fits. Our range coder comes out 0 to 13 % below the entropy of a group's integers; by
// how much, some rows tell that are coded.
//
// What GPTQ will round to spreads wider than weights rounded one by one. So some rows are solved, and stand for the rest.
#pragma once

#include <cstdint>
#include <span>

#include "pack/pack_weights.h"

namespace thimble {

// Of the coded groups alone: what coded_bytes() will say.
std::uint64_t predicted_bytes(const ParamTable& table, std::span<const PackedTensor> tensors, Codec codec);

struct PackEstimate {
  std::uint64_t bytes = 0;  // of the coded groups
  double error = 0;  // rms of what the quantised matrices lose, over the rms of their weights; 0: nothing
};

// Before packing, from the weights. The error is that of weights rounded one by one, whatever the options say.
PackEstimate estimate_packing(const ParamTable& table, std::span<const float> weights,
                              std::span<const DType> restored, const PackOptions& options,
                              const Interrupt* interrupt = nullptr);

}  // namespace thimble
