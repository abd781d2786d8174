// Kernels for calls in a row (ops/cuda_plugin.h).
#pragma once

#include "ops/cuda_plugin.h"

namespace thimble::cuda {

// residual_mix and the rmsnorm that follows it; forward also with the add_scaled that goes before.
void mix_norm_forward(const Context&, std::span<const OpCall* const> mix_norm);
void mix_norm_backward(const Context&, std::span<const OpCall* const> norm_mix);
void sum_mix_norm_forward(const Context&, std::span<const OpCall* const> sum_mix_norm);

}  // namespace thimble::cuda
