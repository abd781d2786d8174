// The residual stream: add_scaled, residual_mix, residual_norm, gated_skip.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "graph/op.h"
#include "graph/tape.h"

namespace thimble {

// add_scaled: y = x + factor * scale (.) branch               (scale absent: 1)
//
//   x, branch, y  [N, C]   scale  [1, 1] or [1, C]   factor  constant
//
// backward: dx <- dy   dbranch <- factor scale (.) dy
//           dscale += factor * sum over rows of dy (.) branch
//           dx may share dy's memory, which makes dx <- dy a no-op; kernels then get no dx.
//
// Used for branches, U-Net skips, the bigram embedding and learned positions.
//
// residual_mix: y = mix[0] (.) x + mix[1] (.) x0
//
//   x, x0, y  [N, C]   mix  [2, 1] or [2, C]
//
// backward: dx <- mix[0] (.) dy   dx0 <- mix[1] (.) dy
//           dmix[0] += sum over rows of dy (.) x   dmix[1] += sum over rows of dy (.) x0
//
// residual_norm: s = x + scale (.) branch,  h = norm_scale * s / sqrt(mean(s^2) + eps) * w
//
//   x, branch  [N, C]                            s     [N, C]  the residual stream
//   scale      [1, 1] or [1, C], optional        h     [N, C]  input of the next linear
//   w          [1, C], optional gain             rstd  [N, 1]  cached for backward
//
// backward: the gradient of s is ds (from later readers of s) plus the norm's backward of dh;
//           dx, dbranch and dscale follow from it as in add_scaled
//
// Equals add_scaled followed by rmsnorm, in one pass over memory.

struct AddScaledAttributes {
  float factor = 1;
};

struct AddScaled {
  Tensor x, branch, scale, y;
  Tensor dy, dx, dbranch, dscale;
  bool add_dx, add_dbranch;
  float factor;

  explicit AddScaled(const OpCall& c)
      : x(c.input(0)),
        branch(c.input(1)),
        scale(c.input(2)),
        y(c.output(0)),
        dy(c.d_output(0)),
        dx(c.d_input(0).data == dy.data ? Tensor{} : c.d_input(0)),
        dbranch(c.d_input(1)),
        dscale(c.d_input(2)),
        add_dx(c.adds(0)),
        add_dbranch(c.adds(1)),
        factor(c.attributes.as<AddScaledAttributes>().factor) {}
};

struct ResidualMix {
  Tensor x, x0, mix, y;
  Tensor dy, dx, dx0, dmix;
  bool add_dx, add_dx0;

  explicit ResidualMix(const OpCall& c)
      : x(c.input(0)),
        x0(c.input(1)),
        mix(c.input(2)),
        y(c.output(0)),
        dy(c.d_output(0)),
        dx(c.d_input(0)),
        dx0(c.d_input(1)),
        dmix(c.d_input(2)),
        add_dx(c.adds(0)),
        add_dx0(c.adds(1)) {}
};

struct ResidualNormAttributes {
  float eps = 1e-6f;
  float norm_scale = 1;
};

struct ResidualNorm {
  Tensor x, branch, scale, w, s, h, rstd;
  Tensor ds, dh, dx, dbranch, dscale, dw;
  bool add_dx, add_dbranch;
  ResidualNormAttributes at;

  explicit ResidualNorm(const OpCall& c)
      : x(c.input(0)),
        branch(c.input(1)),
        scale(c.input(2)),
        w(c.input(3)),
        s(c.output(0)),
        h(c.output(1)),
        rstd(c.output(2)),
        ds(c.d_output(0)),
        dh(c.d_output(1)),
        dx(c.d_input(0)),
        dbranch(c.d_input(1)),
        dscale(c.d_input(2)),
        dw(c.d_input(3)),
        add_dx(c.adds(0)),
        add_dbranch(c.adds(1)),
        at(c.attributes.as<ResidualNormAttributes>()) {}
};

// gated skip: y = g (.) x + (1 - g) (.) w (.) skip,  g = sigmoid(gate)
//
//   x     [N, C]  the residual stream       w, gate  [1, C]
//   skip  [N, C]  an earlier layer's value  y        [N, C]
//
// backward: dx <- g (.) dy   dskip <- (1 - g) (.) w (.) dy
//           dw += (1 - g) (.) sum over rows of dy (.) skip
//           dgate += g (1 - g) (.) sum over rows of dy (.) (x - w (.) skip)
//           (fixed blocks: same bits for any thread count)
//
// A gate of 0 weighs x and w (.) skip equally. x and skip may be the same value. For a skip without
// a gate, use add_scaled.

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

namespace cpu {
extern const Kernels kAddScaled, kResidualMix, kResidualNorm, kGatedSkip;
}  // namespace cpu

namespace op {

extern const OpDefinition kAddScaled, kResidualMix, kResidualNorm, kGatedSkip;

Value add_scaled(Tape& tape, Value x, Value branch, Value scale = {}, float factor = 1);
Value residual_mix(Tape& tape, Value x, Value x0, Value mix);
struct Residual {
  Value stream, normed;
};
Residual residual_norm(Tape& tape, Value x, Value branch, Value scale, Value weight, float eps,
                       float norm_scale = 1);
Value gated_skip(Tape& tape, Value x, Value skip, Value weight, Value gate);

}  // namespace op

}  // namespace thimble
