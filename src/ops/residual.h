// The residual stream, three ops:
//
// add_scaled:     y = x + factor * scale (.) branch             scale absent (1), [1, 1] or [1, C]
//   x, branch, y [N, C]; factor is a constant. Branches, U-Net skips, the bigram embedding, learned positions.
//   backward: dx <- dy   dbranch <- factor scale (.) dy   dscale += factor * sum over rows of dy (.) branch
//   dx may be dy's own memory, which says the same: kernels then see no dx.
//
// residual_mix:   y = mix[0] (.) x + mix[1] (.) x0               mix [2, 1] or [2, C]
//   backward: dx <- mix[0] (.) dy   dx0 <- mix[1] (.) dy
//             dmix[0] += sum over rows of dy (.) x   dmix[1] += sum over rows of dy (.) x0
//
// residual_norm:  s = x + scale (.) branch,  h = norm_scale * s / sqrt(mean(s^2) + eps) * w
//   add_scaled and rmsnorm in one pass over memory: s [N, C] the stream, h [N, C] what the next linear reads,
//   rstd [N, 1] cached.
//   backward: the gradient of s is ds (of its later readers) plus the norm's backward of dh; from there as add_scaled.
#pragma once

#include "ops/op.h"

namespace thimble {

// Whether the gradient of an input is that of output 0, unchanged: both may lie in one memory.
constexpr bool passes_gradient(Op op, std::size_t input) {
  return op == Op::add_scaled && input == 0;
}

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

std::vector<Shape> add_scaled_shapes(std::span<const Shape> in, const Attributes&);
std::vector<Shape> residual_mix_shapes(std::span<const Shape> in, const Attributes&);
std::vector<Shape> residual_norm_shapes(std::span<const Shape> in, const Attributes&);

}  // namespace thimble
