// Matrices as inference keeps them: in the dtype of the rows, or as they came out of a file, used without a copy.
//
//   bf16, f16   the values
//   i8          value[r, c] = w[r, c] * scales[r, g], in f32; scales [rows, 1], one a row, or
//               [rows, ceil(cols / 32)], one for every 32 columns (Q8_0)
//
// A stored matrix means its values: linear, embedding and head_loss of it are those of the matrix of floats, up to the
// rounding of f32 sums. Products are exact in between: q has 8 bits and a scale that is an f16 has 11.
#pragma once

#include <cstdint>

#include "tensor/tensor.h"

namespace thimble {

inline constexpr std::int64_t kScaledColumns = 32;  // that share a scale where a row has several

constexpr std::int64_t scales_per_row(std::int64_t cols) {
  return (cols + kScaledColumns - 1) / kScaledColumns;
}

// One scale serves the whole row. (A row of one block has one, too.)
inline bool one_scale_a_row(const Tensor& scales) {
  return scales.cols == 1;
}

}  // namespace thimble
