// rmsnorm: y = scale * x / sqrt(mean(x^2) + eps) * w        (w absent: weightless)
//
//   x  [N, C]  input rows            rstd [N, 1]  cached for backward: 1 / sqrt(mean(x^2) + eps)
//   w  [1, C]  optional gain         y    [N, C]
//   scale: a constant, 1/sqrt(layer + 1) where layer_scale is on
//
// backward: dx <- rstd (g - x_hat mean(g x_hat)),  g = scale dy w,  x_hat = x rstd   ('=' or '+=': the planner says)
//           dw += sum over rows of scale dy x_hat                           (fixed blocks: same bits, any threads)
//
// Rows are independent and batch-invariant. Arithmetic is f32 for every storage type.
#pragma once

#include "ops/op.h"

namespace thimble {

struct RmsNormAttributes {
  float eps = 1e-6f;
  float scale = 1;
};

struct RmsNorm {
  Tensor x, w, y, rstd;
  Tensor dy, dx, dw;
  bool add_dx;
  RmsNormAttributes at;

  explicit RmsNorm(const OpCall& c)
      : x(c.input(0)),
        w(c.input(1)),
        y(c.output(0)),
        rstd(c.output(1)),
        dy(c.d_output(0)),
        dx(c.d_input(0)),
        dw(c.d_input(1)),
        add_dx(c.adds(0)),
        at(c.attributes.as<RmsNormAttributes>()) {}
};

std::vector<Shape> rmsnorm_shapes(std::span<const Shape> in, const Attributes&);

}  // namespace thimble
