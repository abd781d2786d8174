// fake quantisation: y = the value w would have after packing (see quantise.h); straight through: dw <- dy.
//
//   w [O, I] f32, one scale a row   y [O, I] in `to`: f32, bf16 or f16 (rounded as cast does), for the GEMM
//
// In a model it runs in `prepare`, once per optimizer step, on the master weights. Of f64 and c128 y keeps w's
// dtype, as in cast.
#pragma once

#include "ops/op.h"

namespace thimble {

struct FakeQuantAttributes {
  std::int32_t bits = 8;
  DType to = DType::f32;
};

struct FakeQuant {
  Tensor w, y;
  Tensor dy, dw;
  bool add_dw;
  FakeQuantAttributes at;

  explicit FakeQuant(const OpCall& c)
      : w(c.input(0)),
        y(c.output(0)),
        dy(c.d_output(0)),
        dw(c.d_input(0)),
        add_dw(c.adds(0)),
        at(c.attributes.as<FakeQuantAttributes>()) {}
};

std::vector<Shape> fake_quant_shapes(std::span<const Shape> in, const Attributes&);

}  // namespace thimble
