// Rope for every head size and layout, a warp a head: where the kernels of rope.cu do not fit.
#pragma once

#include "ops/rope.h"

namespace thimble::cuda {

void rope_plain(const Context& context, const Rope& op);
void rope_plain_gradients(const Context& context, const Rope& op, void* scratch);

}  // namespace thimble::cuda
