// Matrix products: oneDNN's, or our own where those are faster or oneDNN has none (packed_gemm.h, bf16_outer.h). The one
// file that knows oneDNN's API (v3 changes it) is gemm.cpp.
#pragma once

#include <cstdint>
#include <memory>

#include "tensor/tensor.h"

namespace thimble::cpu {

// A matrix, or its transpose read from the same memory.
struct Operand {
  Tensor tensor;
  bool transposed = false;

  std::int64_t rows() const { return transposed ? tensor.cols : tensor.rows; }
  std::int64_t cols() const { return transposed ? tensor.rows : tensor.cols; }
};

inline Operand transposed(const Tensor& tensor) {
  return {tensor, true};
}

// Plans (oneDNN primitives) are made once per shape, about 100 us each, and kept with the memory they work in:
// one Gemm lives in each Context, and after the first step nothing is allocated.
class Gemm {
 public:
  Gemm();
  ~Gemm();

  // c = a b + bias, or c += a b. a and b are both f32 or both bf16; c is f32, or bf16 beside them; bias [1, N]
  // is f32 and may be absent. Sums are f32. Same bits for the same shapes and number of threads; our own products
  // have the same bits for any number.
  void run(const Operand& a, const Operand& b, const Tensor& c, bool add, const Tensor& bias = {});

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// What a Gemm keeps to work in, about, for the largest product of a linear layer in training: the gradient of its weight
// [outputs, inputs] from `rows` rows.
std::int64_t training_workspace(DType dtype, std::int64_t rows, std::int64_t outputs, std::int64_t inputs);

}  // namespace thimble::cpu
