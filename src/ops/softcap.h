// softcap: y = cap tanh(x / cap): logits that cannot run away.
//
//   x, y [N, V]
//
// backward: dx <- dy (1 - (y / cap)^2)
#pragma once

#include "ops/op.h"

namespace thimble {

struct SoftcapAttributes {
  float cap = 30;
};

struct Softcap {
  Tensor x, y;
  Tensor dy, dx;
  bool add_dx;
  float cap;

  explicit Softcap(const OpCall& c)
      : x(c.input(0)),
        y(c.output(0)),
        dy(c.d_output(0)),
        dx(c.d_input(0)),
        add_dx(c.adds(0)),
        cap(c.attributes.as<SoftcapAttributes>().cap) {}
};

std::vector<Shape> softcap_shapes(std::span<const Shape> in, const Attributes&);

}  // namespace thimble
