// Matrix products: cuBLASLt behind the engine's own signature.
//
//   result [M, N] = scale op(a) op(b) + base_scale base      a and b of one dtype, f32 (TF32 off), bf16 or f16, summed
//                                                            in f32; base and result both f32 or both of a's dtype
//
// Plans come from cuBLASLt's heuristics and one rule, asked once per shape, layout and alignment and kept: never from
// timing, so the same run takes the same kernels. Where cuBLASLt has none (rows at odd addresses), a plain kernel does it.
#pragma once

#include "ops/cuda/runtime.h"
#include "tensor/tensor.h"

namespace thimble::cuda {

struct Operand {
  Tensor matrix;
  bool transposed = false;
};

inline Operand transposed(const Tensor& matrix) {
  return {matrix, true};
}

// One product, or a batch of them: `count` of each matrix, one behind the other at a constant distance.
struct Product {
  Operand a, b;
  Tensor base, result;  // of one shape and layout; base is read unless base_scale is 0, and may be the result
  float scale = 1, base_scale = 0;
  std::int64_t count = 1;
  std::int64_t a_distance = 0, b_distance = 0, result_distance = 0;  // in elements
};
void gemm(const Context& context, const Product& product);

// c = op(a) op(b), or +=
void gemm(const Context& context, const Operand& a, const Operand& b, const Tensor& c, bool add);

// The plain kernel: every element is one sum in one order, whatever rows share the call.
void plain_gemm(const Context& context, const Product& product);
void plain_gemm(const Context& context, const Operand& a, const Operand& b, const Tensor& c, bool add);

}  // namespace thimble::cuda
