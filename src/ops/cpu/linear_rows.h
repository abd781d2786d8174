// linear for inference: a few rows, or a prompt's block, times a matrix that may be stored. Which kernel runs depends on
// the processor and the dtypes, never on the rows, and each sums an output in one order: batch-invariant.
//
//   pairs      rows in bf16 times bf16 or i8: vdpbf16ps (AVX-512 BF16 and VBMI). Integers of 8 bits are exact in bf16
//   lanes      anything else in f32, sixteen lanes: AVX-512
//   eight      anything in f32, eight lanes: AVX2
//   portable   the same by Highway: below AVX2, and where the processor is none of these
//
// What a matrix is read from counts: one row reads each weight once, and nothing is written of it. For more rows
// outputs are taken a few at a time, which stay in the cache while all rows pass by; those that must be converted are
// converted once (linear.cpp).
#pragma once

#include "tensor/tensor.h"

namespace thimble::cpu {

// y = x w^T: some outputs of a linear, for all rows.
struct LinearRows {
  Tensor x;       // [N, I] f32 or bf16
  Tensor w;       // [O, I] f32, bf16, f16 or i8
  Tensor scales;  // [O, ...], or absent: integers as they are
  Tensor bias;    // [1, O], or absent
  Tensor y;       // [N, O], as x
};

using LinearRowsKernel = void (*)(const LinearRows&);

void linear_rows_in_pairs(const LinearRows& rows);
void linear_rows_in_lanes(const LinearRows& rows);
void linear_rows_in_eight_lanes(const LinearRows& rows);
void linear_rows_portable(const LinearRows& rows);

// Whether the processor has what the first three need.
bool multiplies_rows_in_pairs();
bool multiplies_sixteen_lanes();
bool multiplies_eight_lanes();

}  // namespace thimble::cpu
