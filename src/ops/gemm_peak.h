// What this machine's matrix products reach on given shapes, with nothing around them: the ceiling that training is
// measured against.
#pragma once

#include <cstdint>
#include <span>

#include "tensor/device.h"

namespace thimble {

// y [N, outputs] = x [N, inputs] w^T, `count` times in a step.
struct ProductShape {
  std::int64_t outputs = 0, inputs = 0;
  double count = 1;
};

namespace cpu {

// Seconds that forward, dx and dw of all products take for N rows, each shape at its best of `repeats`.
double seconds_of_products(const Context& context, std::span<const ProductShape> shapes, std::int64_t N,
                           DType dtype, int repeats);

}  // namespace cpu

// Floating-point operations of the same.
double flops_of_products(std::span<const ProductShape> shapes, std::int64_t N);

}  // namespace thimble
