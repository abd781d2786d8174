// Matrix products, by oneDNN or by our own kernels where they are faster or oneDNN has none.
// gemm.cpp chooses, and is the only file that uses the oneDNN API.
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

// A matrix, or its transpose in the same memory.
struct Operand {
  Tensor tensor;
  bool transposed = false;

  std::int64_t rows() const { return transposed ? tensor.cols : tensor.rows; }
  std::int64_t cols() const { return transposed ? tensor.rows : tensor.cols; }
};

inline Operand transposed(const Tensor& tensor) {
  return {tensor, true};
}

// Creates a plan (oneDNN primitive) once per shape, in about 100 us, and keeps it with its
// workspace. Each Context has one Gemm; after the first step nothing is allocated.
class Gemm {
 public:
  Gemm();
  ~Gemm();

  // c = a b + bias, or c += a b. a and b are both f32 or both bf16; c is f32, or bf16 if they are
  // bf16; bias [1, N] is f32 and may be absent. Sums are f32. Same bits for the same shapes and
  // number of threads; our own products give the same bits for any number of threads.
  void run(const Operand& a, const Operand& b, const Tensor& c, bool add, const Tensor& bias = {});

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The approximate workspace of a Gemm for the largest product of a linear layer in training: the
// gradient of its weight [outputs, inputs] from `rows` rows.
std::int64_t training_workspace(DType dtype, std::int64_t rows, std::int64_t outputs, std::int64_t inputs);

// packed_gemm.cpp: f32 arithmetic on panels; bf16 factors are converted during packing.

// Whether products of this dtype use packed_gemm at the current CPU level.
bool uses_packed_gemm(DType dtype);

// Workspace of packed_gemm: panels of both factors, and f32 sums if the result is bf16.
std::int64_t packed_gemm_bytes(std::int64_t M, std::int64_t N, std::int64_t K, DType result);

// Same contract as Gemm::run.
void packed_gemm(const Operand& a, const Operand& b, const Tensor& c, bool add, const Tensor& bias,
                 std::byte* memory);

// bf16_outer.cpp: c += a^T b for bf16 a [R, M] and b [R, N] with many rows R, and f32 c [M, N]: the
// gradient of a weight matrix.

// Whether it is faster than oneDNN on this processor for these sizes.
bool uses_outer_sum(std::int64_t R, std::int64_t M, std::int64_t N);

// Workspace of outer_sum, for its packed panels.
std::int64_t outer_sum_bytes(std::int64_t R, std::int64_t M, std::int64_t N);
void outer_sum(const Tensor& a, const Tensor& b, const Tensor& c, std::byte* memory);

// oneDNN's instruction set, for ops/kernel_choice.h. Set the cap before the first product.
void cap_onednn(CpuLevel level);
CpuLevel onednn_level();
std::string onednn_version();

}  // namespace cpu

// Measures the matrix products alone, for given shapes: an upper bound for the speed of training.

// y [N, outputs] = x [N, inputs] w^T, `count` times per step.
struct ProductShape {
  std::int64_t outputs = 0, inputs = 0;
  double count = 1;
};

namespace cpu {

// Seconds of forward, dx and dw of all products for N rows; each shape takes the best of `repeats`.
double seconds_of_products(const Context& context, std::span<const ProductShape> shapes, std::int64_t N,
                           DType dtype, int repeats);

}  // namespace cpu

// Floating-point operations of these products.
double flops_of_products(std::span<const ProductShape> shapes, std::int64_t N);

}  // namespace thimble
