// gather: y[m] = x[row[m]], so that logits are computed only for the rows that are sampled or scored.
//
//   x [N, C]   row [M] i32, each at most once   y [M, C]
//
// backward: dx[row[m]] <- dy[m], the other rows 0
#pragma once

#include "ops/op.h"

namespace thimble {

struct Gather {
  Tensor x, row, y;
  Tensor dy, dx;
  bool add_dx;

  explicit Gather(const OpCall& c)
      : x(c.input(0)),
        row(c.input(1)),
        y(c.output(0)),
        dy(c.d_output(0)),
        dx(c.d_input(0)),
        add_dx(c.adds(0)) {}
};

std::vector<Shape> gather_shapes(std::span<const Shape> in, const Attributes&);

}  // namespace thimble
