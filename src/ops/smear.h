// smear gate: y[n] = (1 - g) x[n] + g x[previous[n]],  g = sigmoid(gate),  x[-1] = 0: documents do not leak
//
//   x [M, C], M >= N   gate [1, C]   previous [N] i32: the row of the token before, -1 at a document's start
//   y [N, C]           (decoding appends the previous tokens' rows behind the N current ones)
//
// backward: dx[m] <- (1 - g) dy[m] + g dy[m + 1] where previous[m + 1] = m
//                    (training rows: M = N, previous[n] in {n - 1, -1})
//           dgate += g (1 - g) * sum over n of dy[n] (x[previous[n]] - x[n])
//                    (fixed blocks: same bits, any threads)
#pragma once

#include "ops/op.h"

namespace thimble {

struct Smear {
  Tensor x, gate, previous, y;
  Tensor dy, dx, dgate;
  bool add_dx;

  explicit Smear(const OpCall& c)
      : x(c.input(0)),
        gate(c.input(1)),
        previous(c.input(2)),
        y(c.output(0)),
        dy(c.d_output(0)),
        dx(c.d_input(0)),
        dgate(c.d_input(1)),
        add_dx(c.adds(0)) {}
};

std::vector<Shape> smear_shapes(std::span<const Shape> in, const Attributes&);

}  // namespace thimble
