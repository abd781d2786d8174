// fake quantisation: y = the value w would have after packing (see quantise.h); straight through: dw <- dy.
//
//   w, y [O, I]: one scale a row
//
// In a model it runs in `prepare`, once per optimizer step, on the master weights.
#pragma once

#include "ops/op.h"

namespace thimble {

struct FakeQuantAttributes {
  std::int32_t bits = 8;
};

struct FakeQuant {
  Tensor w, y;
  Tensor dy, dw;
  bool add_dw;
  std::int32_t bits;

  explicit FakeQuant(const OpCall& c)
      : w(c.input(0)),
        y(c.output(0)),
        dy(c.d_output(0)),
        dw(c.d_input(0)),
        add_dw(c.adds(0)),
        bits(c.attributes.as<FakeQuantAttributes>().bits) {}
};

std::vector<Shape> fake_quant_shapes(std::span<const Shape> in, const Attributes&);

}  // namespace thimble
