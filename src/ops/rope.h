// rope: what happens to q and to k between projection and attention, head by head:
//
//   x_hat = x / sqrt(mean(x^2) + eps) * w       (norm off: x_hat = x;  w absent: weightless)
//   pairs (i, i + R/2), i < R/2, turn by the angle of their row's position; the columns from R on stay
//     y_i       = x_hat_i cos - x_hat_{i+R/2} sin
//     y_{i+R/2} = x_hat_i sin + x_hat_{i+R/2} cos
//   y *= gain                                   (absent: 1;  [1, 1] shared or [1, H] per head)
//
//   x [N, H D]   position [N] i32   w [1, D], gain [1, 1 or H] optional   y [N, H D]
//   turns [P, R]: row p = cos(p a_i) for i < R/2, then sin(p a_i) (see fill_turns)
//   rstd [N, H] cached for backward (width 1 when the norm is off)
//
// backward: with u = dy gain turned back:  dx <- norm's backward of u (see rmsnorm);  dw += sum of u x rstd
//           dgain[h] += sum over rows of dy . (y / gain), written without the division: dy . turned(x_hat)
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "graph/op.h"
#include "graph/tape.h"

namespace thimble {

struct RopeAttributes {
  std::int32_t heads = 1;
  bool norm = false;
  float eps = 1e-6f;
};

struct Rope {
  Tensor x, position, turns, gain, w, y, rstd;
  Tensor dy, dx, dgain, dw;
  bool add_dx;
  RopeAttributes at;

  explicit Rope(const OpCall& c)
      : x(c.input(0)),
        position(c.input(1)),
        turns(c.input(2)),
        gain(c.input(3)),
        w(c.input(4)),
        y(c.output(0)),
        rstd(c.output(1)),
        dy(c.d_output(0)),
        dx(c.d_input(0)),
        dgain(c.d_input(3)),
        dw(c.d_input(4)),
        add_dx(c.adds(0)),
        at(c.attributes.as<RopeAttributes>()) {}
};

// turns[p] for every position p: angles p base^(-2i/R). direction +1 turns as llama does, -1 as the golf
// files do (parameter-golf 1.2): the sign goes into the sines.
void fill_turns(const Tensor& turns, double base, int direction);

namespace cpu {
extern const Kernels kRope;
}  // namespace cpu

namespace op {

extern const OpDefinition kRope;

Value rope(Tape& tape, Value x, Value position, Value turns, Value gain, Value weight, int heads, bool norm,
           float eps);

}  // namespace op

}  // namespace thimble
