// linear on the CPU: stored matrices (ops/linear.h) as floats, and the kernels that multiply a few
// rows for inference.
//
// linear.cpp chooses the row kernel by the processor and the dtypes, never by the number of rows.
// Each sums an output in one order: batch-invariant.
//
//   linear_rows_bf16      rows in bf16 times bf16 or i8: vdpbf16ps (AVX-512 BF16 and VBMI).
//                         Integers of 8 bits are exact in bf16
//   linear_rows_avx512    anything else, in 16 lanes of f32: AVX-512
//   linear_rows_avx2      anything, in 8 lanes of f32: AVX2
//   linear_rows_portable  the same by Highway, for all other processors
//
// Reading the matrix costs most: one row reads each weight once, and nothing is written back. For
// more rows, a few outputs at a time stay in cache while all rows are multiplied. Weights that must
// be converted are converted once (linear.cpp).
#pragma once

#include <cstdint>

#include "graph/op.h"
#include "ops/linear.h"
#include "tensor/device.h"

namespace thimble::cpu {

// What a stored matrix may be in beside rows of another dtype.
inline constexpr DTypes kStoredDTypes = dtypes({DType::bf16, DType::f16, DType::i8});

// One row of w into a row of f32 or bf16. Without scales, integers become floats as they are.
void unpack_row(const Tensor& w, const Tensor& scales, std::int64_t row, const Tensor& to,
                std::int64_t to_row);

// The matrix in that dtype: itself, or a copy in memory that is kept for the next one.
Tensor unpacked(const Context& context, const Tensor& w, const Tensor& scales, DType dtype);

// y = x w^T: some outputs of a linear, for all rows.
struct LinearRows {
  Tensor x;       // [N, I] f32 or bf16
  Tensor w;       // [O, I] f32, bf16, f16 or i8
  Tensor scales;  // [O, ...], or absent: integers as they are
  Tensor bias;    // [1, O], or absent
  Tensor y;       // [N, O], as x
};

using LinearRowsKernel = void (*)(const LinearRows&);

void linear_rows_bf16(const LinearRows& rows);
void linear_rows_avx512(const LinearRows& rows);
void linear_rows_avx2(const LinearRows& rows);
void linear_rows_portable(const LinearRows& rows);

// Whether the processor has what the first three need.
bool supports_linear_rows_bf16();
bool supports_linear_rows_avx512();
bool supports_linear_rows_avx2();

}  // namespace thimble::cpu
