// gated skip: y = g (.) x + (1 - g) (.) w (.) skip,  g = sigmoid(gate)
//
//   x     [N, C]  the stream           w, gate  [1, C]
//   skip  [N, C]  an earlier layer's   y        [N, C]
//
// A gate of 0 takes half of each; add_scaled is the skip without one. x and skip may be one value.
//
// backward: dx <- g (.) dy   dskip <- (1 - g) (.) w (.) dy
//           dw += (1 - g) (.) sum over rows of dy (.) skip
//           dgate += g (1 - g) (.) sum over rows of dy (.) (x - w (.) skip)     (fixed blocks: same bits, any threads)
#pragma once

#include "ops/op.h"

namespace thimble {

struct GatedSkip {
  Tensor x, skip, w, gate, y;
  Tensor dy, dx, dskip, dw, dgate;
  bool add_dx, add_dskip;

  explicit GatedSkip(const OpCall& c)
      : x(c.input(0)),
        skip(c.input(1)),
        w(c.input(2)),
        gate(c.input(3)),
        y(c.output(0)),
        dy(c.d_output(0)),
        dx(c.d_input(0)),
        dskip(c.d_input(1)),
        dw(c.d_input(2)),
        dgate(c.d_input(3)),
        add_dx(c.adds(0)),
        add_dskip(c.adds(1)) {}
};

std::vector<Shape> gated_skip_shapes(std::span<const Shape> in, const Attributes&);

}  // namespace thimble
