// A product of few rows, for decoding: y = x w^T + b in bf16 or f16.
//
// Every element is summed over the columns in one order that depends on their number alone, so that a row gives the
// same bits whatever rows share the call. Weights are read once, by as many blocks as there are eights of outputs.
#pragma once

#include "ops/cuda/scratch.h"
#include "ops/linear.h"

namespace thimble::cuda {

// Whether the kernel takes it: 16 bits, at most kFewRows rows, everything aligned to 16 bytes.
bool takes_linear_rows(const Linear& op);
void linear_rows(const Context& context, const Linear& op);

}  // namespace thimble::cuda
