// attention: causal softmax attention among the rows of one document, with grouped queries.
//
//   q [N, H D]   k, v [N, K D]   H divisible by K: query heads j H/K ... share kv head j
//   first [N] i32: the row where row n's document (or its row of the batch) starts; never decreases, first[n] <= n
//   y[n, h] = sum over m in [first[n], n] of softmax_m(scale q[n, h] . k[m, j]) v[m, j]
//   lse [N, H] cached for backward: log of the softmax's denominator
//
// backward, with p = exp(scale q.k - lse) and delta[n, h] = dy[n, h] . y[n, h]:
//   dv[m] <- sum over n, h of p dy[n, h]
//   ds = p (dy[n, h] . v[m] - delta[n, h]) scale
//   dq[n, h] <- sum over m of ds k[m]        dk[m] <- sum over n, h of ds q[n, h]
//
// In bf16, p and ds are rounded before they are multiplied again; sums are f32. dq, dk and dv are rounded once per
// 1024 rows of their document.
//
// Works in tiles: scores are never [T, T] for the batch. Sums run in program order: same bits for any number of
// threads, and for a document wherever it stands. What is not finite stays visible, and may spread to other rows of
// its document.
#pragma once

#include "ops/op.h"

namespace thimble {

struct AttentionAttributes {
  std::int32_t heads = 1, kv_heads = 1;
  float scale = 1;
};

struct Attention {
  Tensor q, k, v, first, y, lse;
  Tensor dy, dq, dk, dv;
  bool add_dq, add_dk, add_dv;
  AttentionAttributes at;

  explicit Attention(const OpCall& c)
      : q(c.input(0)),
        k(c.input(1)),
        v(c.input(2)),
        first(c.input(3)),
        y(c.output(0)),
        lse(c.output(1)),
        dy(c.d_output(0)),
        dq(c.d_input(0)),
        dk(c.d_input(1)),
        dv(c.d_input(2)),
        add_dq(c.adds(0)),
        add_dk(c.adds(1)),
        add_dv(c.adds(2)),
        at(c.attributes.as<AttentionAttributes>()) {}

  std::int64_t head_size() const { return q.cols / at.heads; }
  std::int64_t group() const { return at.heads / at.kv_heads; }
};

std::vector<Shape> attention_shapes(std::span<const Shape> in, const Attributes&);

}  // namespace thimble
