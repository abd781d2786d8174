// linear: y = x w^T + b
//
//   x [N, I]   w [O, I]   b [1, O] optional   y [N, O]      w may be stored (stored.h), with scales where it is i8
//
// backward: dx <- dy w    dw += dy^T x    db += sum over rows of dy
//
// Sums are f32, and in bf16 y and dx are rounded once. Products of our own (ops/cpu/gemm.h) have the same bits for any
// number of threads; those of oneDNN for the same number.
//
// Grouped weights (q;k;v or gate;up stored one below the other) are one linear whose output is read by
// columns. `invariant`: inference. A row gives the same bits whatever rows share the call, and a stored w is used as
// it lies; slower for many rows (a card holds to it in bf16 for up to 64 rows whose I is a multiple of 8, and takes no
// stored w). Without it a stored w is unpacked for the call, into memory of its size.
#pragma once

#include "ops/op.h"

namespace thimble {

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

std::vector<Shape> linear_shapes(std::span<const Shape> in, const Attributes&);

}  // namespace thimble
