// exclusive attention (parameter-golf 2.14): takes out of each head's result what its own value already says.
//
//   z = y - (y . u) u,  u = v / max(|v|, 1e-12),  v of the same row and the head's kv head
//
//   y [N, H D]   v [N, K D]   z [N, H D]
//
// backward: dy <- dz - (dz . u) u
//           dv <- -1/|v| * sum over the group's heads of ((dz . u) y + (y . u) dz - 2 (y . u)(dz . u) u)
#pragma once

#include "ops/op.h"

namespace thimble {

struct ExclusiveAttributes {
  std::int32_t heads = 1, kv_heads = 1;
};

struct ExclusiveAttention {
  Tensor y, v, z;
  Tensor dz, dy, dv;
  bool add_dy, add_dv;
  ExclusiveAttributes at;

  explicit ExclusiveAttention(const OpCall& c)
      : y(c.input(0)),
        v(c.input(1)),
        z(c.output(0)),
        dz(c.d_output(0)),
        dy(c.d_input(0)),
        dv(c.d_input(1)),
        add_dy(c.adds(0)),
        add_dv(c.adds(1)),
        at(c.attributes.as<ExclusiveAttributes>()) {}

  std::int64_t head_size() const { return y.cols / at.heads; }
  std::int64_t group() const { return at.heads / at.kv_heads; }
};

inline constexpr double kSmallestValueNorm = 1e-12;

std::vector<Shape> exclusive_attention_shapes(std::span<const Shape> in, const Attributes&);

}  // namespace thimble
