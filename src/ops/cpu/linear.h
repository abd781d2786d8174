// linear on the CPU: conversion of stored matrices (ops/linear.h), and the kernels that multiply a
// few rows for inference.
//
// linear.cpp chooses the kernel by processor and dtypes, never by the number of rows. Every kernel
// sums an output in a fixed order, so results are batch-invariant.
//
//   linear_rows_bf16      bf16 rows times bf16 or i8: vdpbf16ps (AVX-512 BF16 and VBMI); 8-bit
//                         integers are exact in bf16
//   linear_rows_avx512    other dtypes in 16 lanes of f32: AVX-512
//   linear_rows_avx2      all dtypes in 8 lanes of f32: AVX2
//   linear_rows_wasm      f32 rows times i8 with one scale per row: WebAssembly's products of i16
//   linear_rows_portable  the same with Highway, for all other processors
//
// Reading the matrix dominates the time. A single row reads each weight once and writes nothing
// back. With more rows, a few outputs at a time stay in cache while all rows are multiplied.
// Weights that need a conversion are converted once (linear.cpp). Floats in blocks are unpacked
// into a few rows of memory, which stay in L1; integers in blocks have other kernels
// (block_products.h).
#pragma once

#include <cstdint>

#include "graph/op.h"
#include "ops/linear.h"
#include "tensor/device.h"

namespace thimble::cpu {

// Dtypes of stored matrices, in addition to the dtype of the rows.
inline constexpr DTypes kStoredDTypes = dtypes({DType::bf16, DType::f16, DType::i8, DType::blocks});

// Converts one row of w to f32 or bf16. Without scales, integers are converted unscaled.
void unpack_row(const Tensor& w, const Tensor& scales, std::int64_t row, const Tensor& to,
                std::int64_t to_row);

// The same for w in blocks (block_rows.cpp).
void unpack_block_row(const Tensor& w, std::int64_t row, const Tensor& to, std::int64_t to_row);

// Rows of w, which is in blocks, as a tensor of floats; empty if they are not stored as floats in
// one place and in this order.
Tensor plain_rows(const Tensor& w, std::int64_t first, std::int64_t count);

// Rows [first, first + count) of w in `dtype`: those of w itself, or a copy in memory that is
// reused by the next call.
Tensor unpacked_rows(const Context& context, const Tensor& w, const Tensor& scales, std::int64_t first,
                     std::int64_t count, DType dtype);
inline Tensor unpacked(const Context& context, const Tensor& w, const Tensor& scales, DType dtype) {
  return unpacked_rows(context, w, scales, 0, w.rows, dtype);
}

// y = x w^T for some outputs of a linear and all rows.
struct LinearRows {
  Tensor x;       // [N, I] f32 or bf16
  Tensor w;       // [O, I] f32, bf16, f16 or i8, or blocks
  Tensor scales;  // [O, ...], or absent: integers are unscaled
  Tensor bias;    // [1, O], or absent
  Tensor y;       // [N, O], dtype of x

  // For w in blocks: the row of the matrix where these outputs begin, and memory for kUnpackedRows
  // rows in the dtype that the kernel multiplies.
  std::int64_t first = 0;
  std::byte* unpacked = nullptr;
};

inline constexpr std::int64_t kUnpackedRows = 4;

// A row of w in W, the type that the kernel reads. A row in blocks is unpacked into slot `slot`.
template <class W>
const W* weights_row(const LinearRows& p, std::int64_t row, std::int64_t slot) {
  if (p.w.dtype != DType::blocks) return p.w.row<W>(row);
  const Tensor slots = make_tensor(reinterpret_cast<W*>(p.unpacked), kUnpackedRows, p.w.cols);
  unpack_block_row(p.w, p.first + row, slots, slot);
  return slots.row<W>(slot);
}

using LinearRowsKernel = void (*)(const LinearRows&);

void linear_rows_bf16(const LinearRows& rows);
void linear_rows_avx512(const LinearRows& rows);
void linear_rows_avx2(const LinearRows& rows);
void linear_rows_wasm(const LinearRows& rows);
void linear_rows_portable(const LinearRows& rows);

// Whether the processor supports the kernel.
bool supports_linear_rows_bf16();
bool supports_linear_rows_avx512();
bool supports_linear_rows_avx2();
bool supports_linear_rows_wasm();

}  // namespace thimble::cpu
