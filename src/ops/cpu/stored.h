// Stored matrices (ops/linear.h) as floats, where a kernel wants them so: a row, a tile, a whole one.
#pragma once

#include <cstdint>

#include "ops/linear.h"
#include "tensor/device.h"

namespace thimble::cpu {

// One row of w into a row of f32 or bf16. Without scales, integers become floats as they are.
void unpack_row(const Tensor& w, const Tensor& scales, std::int64_t row, const Tensor& to,
                std::int64_t to_row);

// The matrix in that dtype: itself, or a copy in memory that is kept for the next one.
Tensor unpacked(const Context& context, const Tensor& w, const Tensor& scales, DType dtype);

}  // namespace thimble::cpu
