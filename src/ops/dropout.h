// dropout: y = x m / (1 - p),  m[n, c] = 0 with probability p, else 1
//
//   x, y [N, C]   seed [2, 1] i32: the step's 64-bit seed, low word first, from a buffer that changes every step
//
// m is Philox of (seed, stream, n C + c): nothing is stored, backward draws it again. stream tells the places apart.
//
// backward: dx <- dy m / (1 - p)
#pragma once

#include "ops/op.h"

namespace thimble {

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

// A word below this drops its element.
constexpr std::uint64_t dropout_threshold(float p) {
  return static_cast<std::uint64_t>(static_cast<double>(p) * 0x1p32);
}

std::vector<Shape> dropout_shapes(std::span<const Shape> in, const Attributes&);

}  // namespace thimble
