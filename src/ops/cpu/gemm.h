// Matrix products: oneDNN's, or our own where those are faster or oneDNN has none. gemm.cpp chooses,
// and is the one file that knows oneDNN's API (v3 changes it).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/machine.h"
#include "tensor/device.h"
#include "tensor/tensor.h"

namespace thimble {

namespace cpu {

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

// packed_gemm.cpp: f32 arithmetic on panels that are expanded from f32 or bf16 while they are packed.

// Whether products of this dtype are made there at the CPU level in effect.
bool packed_gemm_pays(DType dtype);

// Memory that packed_gemm works in: panels of both factors, and sums in f32 for a result in bf16.
std::int64_t packed_gemm_bytes(std::int64_t M, std::int64_t N, std::int64_t K, DType result);

// As Gemm::run.
void packed_gemm(const Operand& a, const Operand& b, const Tensor& c, bool add, const Tensor& bias,
                 std::byte* memory);

// bf16_outer.cpp: c += a^T b for bf16 a [R, M], b [R, N] with many rows R, and f32 c [M, N]: the
// gradient of a weight matrix.

// Whether this processor and these shapes gain by it.
bool outer_sum_pays(std::int64_t R, std::int64_t M, std::int64_t N);

// Memory that outer_sum packs into.
std::int64_t outer_sum_bytes(std::int64_t R, std::int64_t M, std::int64_t N);
void outer_sum(const Tensor& a, const Tensor& b, const Tensor& c, std::byte* memory);

// oneDNN's own choice of instructions, for ops/kernel_choice.h. The cap has to come before the first
// product.
void cap_onednn(CpuLevel level);
CpuLevel onednn_level();
std::string onednn_version();

}  // namespace cpu

// What this machine's matrix products reach on given shapes, with nothing around them: the ceiling
// that training is measured against.

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
