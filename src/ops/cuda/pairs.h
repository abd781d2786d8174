// Kernels for two calls in a row (ops/cuda_plugin.h).
#pragma once

#include "ops/cuda_plugin.h"

namespace thimble::cuda {

PairKernel pair_kernel(Op first, Op second, bool backward);

void mix_norm_forward(const Context&, const OpCall& mix, const OpCall& norm);
void mix_norm_backward(const Context&, const OpCall& norm, const OpCall& mix);

}  // namespace thimble::cuda
