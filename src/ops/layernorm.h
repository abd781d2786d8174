// layernorm: y = (x - mean) / sqrt(var + eps) * w + b        (w, b absent: neither)
//
//   x [N, C]   w, b [1, C] optional   y [N, C]
//   mean, rstd [N, 1] cached for backward; var is the biased variance
//
// backward: dx <- rstd (g - mean(g) - x_hat mean(g x_hat)),  g = dy w,  x_hat = (x - mean) rstd
//           dw += sum over rows of dy x_hat,  db += sum over rows of dy
#pragma once

#include "ops/op.h"

namespace thimble {

struct LayerNormAttributes {
  float eps = 1e-5f;
};

struct LayerNorm {
  Tensor x, w, b, y, mean, rstd;
  Tensor dy, dx, dw, db;
  bool add_dx;
  LayerNormAttributes at;

  explicit LayerNorm(const OpCall& c)
      : x(c.input(0)),
        w(c.input(1)),
        b(c.input(2)),
        y(c.output(0)),
        mean(c.output(1)),
        rstd(c.output(2)),
        dy(c.d_output(0)),
        dx(c.d_input(0)),
        dw(c.d_input(1)),
        db(c.d_input(2)),
        add_dx(c.adds(0)),
        at(c.attributes.as<LayerNormAttributes>()) {}
};

std::vector<Shape> layernorm_shapes(std::span<const Shape> in, const Attributes&);

}  // namespace thimble
