// linear: y = x w^T + b
//
//   x [N, I]   w [O, I]   b [1, O] optional   y [N, O]      w may be stored (see above), with scales where it is i8
//
// backward: dx <- dy w    dw += dy^T x    db += sum over rows of dy
//
// Sums are f32, and in bf16 y and dx are rounded once. Products of our own (ops/cpu/gemm.h) have the same bits for any
// number of threads; those of oneDNN for the same number.
//
// Grouped weights (q;k;v or gate;up stored one below the other) are one linear whose output is read by
// columns. `invariant`: inference. A row gives the same bits whatever rows share the call, and a stored w is used as
// it lies; slower for many rows (a GPU holds to it in bf16 for up to 64 rows whose I is a multiple of 8, and takes no
// stored w). Without it a stored w is unpacked for the call, into memory of its size.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "graph/op.h"
#include "graph/tape.h"

namespace thimble {

// Matrices as inference keeps them: in the dtype of the rows, or as they came out of a file, used without a copy.
//
//   bf16, f16   the values
//   i8          value[r, c] = w[r, c] * scales[r, g], in f32; scales [rows, 1], one a row, or
//               [rows, ceil(cols / 32)], one for every 32 columns (Q8_0)
//
// A stored matrix means its values: linear, embedding and head_loss of it are those of the matrix of floats, up to the
// rounding of f32 sums. Products are exact in between: q has 8 bits and a scale that is an f16 has 11.
inline constexpr std::int64_t kScaledColumns = 32;  // that share a scale where a row has several

constexpr std::int64_t scales_per_row(std::int64_t cols) {
  return (cols + kScaledColumns - 1) / kScaledColumns;
}

// One scale serves the whole row. (A row of one block has one, too.)
inline bool one_scale_a_row(const Tensor& scales) {
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
