// cast: y = x in another dtype, rounded to nearest, ties to even (tensor/tensor.h); straight through: dx <- dy.
//
//   x [N, C] f32, bf16 or f16   y [N, C] in `to`, one of these
//
// In a model it runs in `prepare`, once per optimizer step: f32 master weights become bf16 compute copies.
// Of f64 and c128, in which the reference is checked, y has the values of `to` and keeps x's dtype.
#pragma once

#include "ops/op.h"

namespace thimble {

struct CastAttributes {
  DType to = DType::bf16;
};

struct Cast {
  Tensor x, y;
  Tensor dy, dx;
  bool add_dx;
  DType to;

  explicit Cast(const OpCall& c)
      : x(c.input(0)),
        y(c.output(0)),
        dy(c.d_output(0)),
        dx(c.d_input(0)),
        add_dx(c.adds(0)),
        to(c.attributes.as<CastAttributes>().to) {}
};

std::vector<Shape> cast_shapes(std::span<const Shape> in, const Attributes&);

}  // namespace thimble
