// Row norms: rmsnorm, layernorm.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "graph/op.h"
#include "graph/tape.h"

namespace thimble {

// rmsnorm: y = scale * x / sqrt(mean(x^2) + eps) * w        (w absent: no gain)
//
//   x  [N, C]  input rows            rstd  [N, 1]  cached for backward: 1 / sqrt(mean(x^2) + eps)
//   w  [1, C]  optional gain         y     [N, C]
//   scale      constant; 1/sqrt(layer + 1) with layer_scale
//
// backward: dx <- rstd (g - x_hat mean(g x_hat)),  g = scale dy w,  x_hat = x rstd
//           dw += sum over rows of scale dy x_hat   (fixed blocks: same bits for any thread count)
//
// Batch-invariant: a row does not depend on the others. Arithmetic is f32 for every storage dtype.

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

// layernorm: y = (x - mean) / sqrt(var + eps) * w + b        (w or b absent: without it)
//
//   x  [N, C]  input rows            mean, rstd  [N, 1]  cached for backward
//   w  [1, C]  optional gain         y           [N, C]
//   b  [1, C]  optional bias         var         biased variance
//
// backward: dx <- rstd (g - mean(g) - x_hat mean(g x_hat)),  g = dy w,  x_hat = (x - mean) rstd
//           dw += sum over rows of dy x_hat,  db += sum over rows of dy

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

namespace cpu {
extern const Kernels kRmsNorm, kLayerNorm;
}  // namespace cpu

namespace op {

extern const OpDefinition kRmsNorm, kLayerNorm;

Value rmsnorm(Tape& tape, Value x, Value weight, float eps, float scale = 1);
Value layernorm(Tape& tape, Value x, Value weight, Value bias, float eps);

}  // namespace op

}  // namespace thimble
