// Matrix products: cuBLASLt behind the engine's own signature.
//
//   c [M, N] = op(a) op(b), or += ; a and b both f32 (TF32 off) or both bf16 (accumulated in f32); c f32 or bf16
//
// Plans come from cuBLASLt's heuristics, asked once per shape, layout and alignment and kept: never from timing, so the
// same run takes the same kernels. Where cuBLASLt has none (rows at odd addresses), a plain kernel does it.
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

void gemm(const Context& context, const Operand& a, const Operand& b, const Tensor& c, bool add);

// The plain kernel: every element is one sum in one order, whatever rows share the call.
void plain_gemm(const Context& context, const Operand& a, const Operand& b, const Tensor& c, bool add);

}  // namespace thimble::cuda
