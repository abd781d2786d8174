// activation: the MLP's nonlinearity, element by element.
//
//   relu          max(x, 0)
//   relu2         max(x, 0)^2
//   leaky_relu2   (x > 0 ? x : x/2)^2
//   gelu          x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
//   swiglu        silu(gate) up,  silu(a) = a / (1 + exp(-a))
//
//   x [N, F], for swiglu [N, 2F]: gate in its first F columns, then up   y [N, F]
//
// backward: dx <- dy f'(x), from x alone (at 0 the derivative of relu is 0). NaN passes through, both ways.
#pragma once

#include "ops/op.h"

namespace thimble {

enum class ActivationKind : std::int32_t { relu, relu2, leaky_relu2, gelu, swiglu };

struct ActivationAttributes {
  ActivationKind kind = ActivationKind::relu2;
};

struct Activation {
  Tensor x, y;
  Tensor dy, dx;
  bool add_dx;
  ActivationKind kind;

  explicit Activation(const OpCall& c)
      : x(c.input(0)),
        y(c.output(0)),
        dy(c.d_output(0)),
        dx(c.d_input(0)),
        add_dx(c.adds(0)),
        kind(c.attributes.as<ActivationAttributes>().kind) {}
};

inline constexpr double kGeluInner = 0.7978845608028654;  // sqrt(2 / pi)
inline constexpr double kGeluCubic = 0.044715;

std::vector<Shape> activation_shapes(std::span<const Shape> in, const Attributes&);

}  // namespace thimble
