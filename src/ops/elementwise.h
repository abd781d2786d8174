// Element-wise ops: activation, dropout.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "graph/op.h"
#include "graph/tape.h"

namespace thimble {

// activation: y = f(x), the nonlinearity of the MLP
//
//   relu          max(x, 0)
//   relu2         max(x, 0)^2
//   leaky_relu2   (x > 0 ? x : x/2)^2
//   gelu          x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
//   swiglu        silu(gate) up,  silu(a) = a / (1 + exp(-a))
//   geglu         gelu(gate) up
//
//   x  [N, F]  swiglu, geglu: [N, 2F], F columns of gate, then F columns of up
//   y  [N, F]
//
// backward: dx <- dy f'(x), computed from x; relu'(0) = 0. NaN propagates in both directions.

enum class ActivationKind : std::int32_t { relu, relu2, leaky_relu2, gelu, swiglu, geglu };

constexpr bool is_gated(ActivationKind kind) {
  return kind == ActivationKind::swiglu || kind == ActivationKind::geglu;
}

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

// dropout: y = x m / (1 - p),  m[n, c] = 0 with probability p, else 1
//
//   x, y  [N, C]
//   seed  [2, 1] i32  the step's 64-bit seed, low word first, in a buffer that changes every step
//
// backward: dx <- dy m / (1 - p)
//
// m is Philox of (seed, stream, n C + c). It is not stored; backward generates it again. `stream`
// is different for each dropout node of a model.

struct DropoutAttributes {
  float p = 0;
  std::uint32_t stream = 0;
};

struct Dropout {
  Tensor x, seed, y;
  Tensor dy, dx;
  bool add_dx;
  DropoutAttributes at;

  explicit Dropout(const OpCall& c)
      : x(c.input(0)),
        seed(c.input(1)),
        y(c.output(0)),
        dy(c.d_output(0)),
        dx(c.d_input(0)),
        add_dx(c.adds(0)),
        at(c.attributes.as<DropoutAttributes>()) {}

  std::uint64_t seed_value() const {
    const auto low = static_cast<std::uint32_t>(*seed.row<std::int32_t>(0));
    return std::uint64_t{static_cast<std::uint32_t>(*seed.row<std::int32_t>(1))} << 32 | low;
  }
};

// An element is dropped if its random word is below this threshold.
constexpr std::uint64_t dropout_threshold(float p) {
  return static_cast<std::uint64_t>(static_cast<double>(p) * 0x1p32);
}

namespace cpu {
extern const Kernels kActivation, kDropout;
}  // namespace cpu

namespace op {

extern const OpDefinition kActivation, kDropout;

Value activation(Tape& tape, Value x, ActivationKind kind);
Value dropout(Tape& tape, Value x, Value seed, float p);

}  // namespace op

}  // namespace thimble
