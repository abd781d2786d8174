// Predicts the size and the error of packed weights.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "base/signals.h"
#include "pack/pack_weights.h"

namespace thimble {

// Predicts how many bytes packed weights will take, without compressing all of them.
//
// The prediction is the entropy of the bytes. On trained weights, zstd comes within about 1 % of
// it, block by block (packed_tensor.h). Counting is about a hundred times as fast as zstd-22, which
// makes it possible to search for a rule that fits. The range coder is 0 to 13 % below the entropy
// of a group's integers; the ratio is estimated by coding a sample of rows.
//
// GPTQ's codes have a wider distribution than weights rounded to nearest, so GPTQ is run on a
// sample of rows. The prediction covers only the coded groups, like coded_bytes().
std::uint64_t predicted_bytes(const ParamTable& table, std::span<const PackedTensor> tensors, Codec codec);

// What one role contributes to a PackEstimate.
struct RoleEstimate {
  double bytes = 0;    // of the coded groups of the role's quantized tensors
  double lost = 0;     // sum of squared errors of its quantized matrices
  double squares = 0;  // sum of squares of their weights

  double error() const;  // relative rms error
};

struct PackEstimate {
  std::uint64_t bytes = 0;  // of the coded groups
  double error = 0;         // rms error of the quantized matrices / rms of their weights
  std::array<RoleEstimate, kPackRoles> roles = {};

  const RoleEstimate& of(PackRole role) const { return roles[static_cast<std::size_t>(role)]; }
};

// The same before packing, from float weights. The error is always that of rounding to nearest,
// even with GPTQ.
PackEstimate estimate_packing(const ParamTable& table, std::span<const float> weights,
                              std::span<const DType> restored, const PackOptions& options,
                              const Interrupt* interrupt = nullptr);

}  // namespace thimble
