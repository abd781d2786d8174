// Matrix products with cuBLASLt.
//
//   result [M, N] = scale op(a) op(b) + base_scale base
//
// a and b have the same dtype: f32 (TF32 off), bf16 or f16; sums are f32. base and result are both
// f32 or both of a's dtype.
//
// A plan is selected once per shape, layout and alignment, by cuBLASLt's heuristics and one
// exception to them (gemm.cpp), and kept. It is never selected by timing, so the same run uses the
// same kernels. Where cuBLASLt has no kernel (unaligned rows), a plain kernel is used.
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

// One product, or a batch of `count` products whose matrices are at constant distances.
struct Product {
  Operand a, b;
  Tensor base, result;  // of one layout; base is not read if base_scale is 0
  float scale = 1, base_scale = 0;
  std::int64_t count = 1;
  std::int64_t a_distance = 0, b_distance = 0, result_distance = 0;  // in elements
};
void gemm(const Context& context, const Product& product);

// c = op(a) op(b), or c += op(a) op(b).
void gemm(const Context& context, const Operand& a, const Operand& b, const Tensor& c, bool add);

// The plain kernel: every element is summed in a fixed order, independent of the other rows of the
// call.
void plain_gemm(const Context& context, const Product& product);
void plain_gemm(const Context& context, const Operand& a, const Operand& b, const Tensor& c, bool add);

}  // namespace thimble::cuda
