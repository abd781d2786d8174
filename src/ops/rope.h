// rope: norm, rotation and gain of each head of q or k, between projection and attention
//
//   x     [N, H D]                          position  [N] i32  row of `rotations`
//   w     [1, D]  optional norm gain        gain      [1, 1] or [1, H], optional
//   y     [N, H D]                          rstd      [N, H]  cached for backward ([N, 1]: no norm)
//   rotations  [P, R]  R <= D; row p is cos(p a_i) for i < R/2, then sin(p a_i) (fill_rotations);
//                      of scaled RoPE, these numbers may have a common factor
//
//   x_hat = x / sqrt(mean(x^2) + eps) * w     (norm off: x_hat = x;  w absent: no gain)
//   pairs (i, i + R/2), i < R/2, are rotated; columns from R on are copied:
//     y_i       = x_hat_i cos - x_hat_{i+R/2} sin
//     y_{i+R/2} = x_hat_i sin + x_hat_{i+R/2} cos
//   y *= gain                                 (absent: 1)
//
// backward: dx <- norm backward (see rmsnorm) of u,  u = gain dy rotated back
//           dw += sum over rows of u x rstd
//           dgain[h] += sum over rows of dy . rotated(x_hat)
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
  Tensor x, position, rotations, gain, w, y, rstd;
  Tensor dy, dx, dgain, dw;
  bool add_dx;
  RopeAttributes at;

  explicit Rope(const OpCall& c)
      : x(c.input(0)),
        position(c.input(1)),
        rotations(c.input(2)),
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

// Fills rotations[p] for every position p with the angles p frequencies[i]. direction +1 rotates as
// llama does, -1 as parameter-golf does; the sign is applied to the sines. Sines and cosines are
// multiplied with `factor`.
void fill_rotations(const Tensor& rotations, std::span<const double> frequencies, int direction,
                    double factor = 1);
void fill_rotations(const Tensor& rotations, double base, int direction);  // base^(-2i/R)

namespace cpu {
extern const Kernels kRope;
}  // namespace cpu

namespace op {

extern const OpDefinition kRope;

Value rope(Tape& tape, Value x, Value position, Value rotations, Value gain, Value weight, int heads,
           bool norm, float eps);

}  // namespace op

}  // namespace thimble
