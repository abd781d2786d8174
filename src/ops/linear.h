// linear: y = x w^T + b
//
//   x  [N, I]  input rows                        b  [1, O]  optional bias
//   w  [O, I]  weight; in inference it may be    y  [N, O]
//              stored (see below)
//
// backward: dx <- dy w    dw += dy^T x    db += sum over rows of dy
//
// I is the input width and O the output width. Sums are f32; in bf16, y and dx are rounded once.
// Our own products (ops/cpu/gemm.h) give the same bits for any number of threads, oneDNN's only for
// the same number.
//
// Grouped weights (q;k;v or gate;up stacked by rows) are one linear; its output is read by columns.
//
// `invariant` is for inference: the other rows of a call do not change the bits of a row, and a
// stored w is read without unpacking. It is slower for many rows. On a GPU it holds for up to 64
// rows in bf16 with I a multiple of 8, and w may not be stored. Without `invariant`, a stored w is
// unpacked for the call into memory of its full size, in forward and for dx; it has no dw.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "graph/op.h"
#include "graph/tape.h"

namespace thimble {

// Stored matrices. In inference, a matrix has the dtype of the rows, or the dtype of the file it
// was loaded from, which is then used without a copy:
//
//   bf16, f16   the values
//   i8          value[r, c] = w[r, c] * scales[r, g], in f32; scales are [rows, 1] (one per row) or
//               [rows, ceil(cols / 32)] (one per 32 columns, as in Q8_0)
//   blocks      rows in the blocks of a GGUF file (tensor/block_rows.h); where bf16 pairs are
//               multiplied, floats are rounded to bf16, like the copies in training
//
// linear, embedding and head_loss of a stored matrix equal those of the matrix of its values, which
// are exact in f32, up to the rounding of f32 sums. With `invariant`, blocks of integers are
// multiplied by rows that are rounded to 8 bits (ops/cpu/block_products.h).
inline constexpr std::int64_t kScaledColumns = 32;  // columns per scale where a row has several

constexpr std::int64_t scales_per_row(std::int64_t cols) {
  return (cols + kScaledColumns - 1) / kScaledColumns;
}

// True if one scale serves the whole row, also for rows of a single 32-column block.
inline bool one_scale_per_row(const Tensor& scales) {
  return scales.cols == 1;
}

struct LinearAttributes {
  bool invariant = false;
};

struct Linear {
  Tensor x, w, b, scales, y;
  Tensor dy, dx, dw, db;
  bool add_dx;
  LinearAttributes at;

  explicit Linear(const OpCall& c)
      : x(c.input(0)),
        w(c.input(1)),
        b(c.input(2)),
        scales(c.input(3)),
        y(c.output(0)),
        dy(c.d_output(0)),
        dx(c.d_input(0)),
        dw(c.d_input(1)),
        db(c.d_input(2)),
        add_dx(c.adds(0)),
        at(c.attributes.as<LinearAttributes>()) {}
};

namespace cpu {
extern const Kernels kLinear;
}  // namespace cpu

namespace op {

extern const OpDefinition kLinear;

Value linear(Tape& tape, Value x, Value weight, Value bias = {}, bool invariant = false, Value scales = {});

}  // namespace op

}  // namespace thimble
