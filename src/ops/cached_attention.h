// cached attention: inference. Each row appends its k and v to its slot, then attends to all the slot holds so far.
//
//   q [N, H D]   k, v [N, K D]   slot [N] i32   position [N] i32 < context
//   slot -1 (on a card): a row that fills a step up to its recorded size; nothing is appended, y is 0
//   k_cache, v_cache [slots * context, K D], in the dtype of k and v: slot s holds rows s * context ...; written here:
//   state, not inputs
//   y[n, h] = sum over m in [0, position[n]] of softmax_m(scale q[n, h] . k_cache[slot, m]) v_cache[slot, m]
//
// Rows of one slot must come in order of position (a prompt's block); rows of different slots in any order. All rows
// are appended before any attends. Batch-invariant: a row gives the same bits whatever rows share the call. A card holds
// to it for up to 64 rows, with H D and K D multiples of 8.
#pragma once

#include "ops/op.h"

namespace thimble {

struct CachedAttentionAttributes {
  std::int32_t heads = 1, kv_heads = 1, context = 1;
  float scale = 1;
};

struct CachedAttention {
  Tensor q, k, v, slot, position, k_cache, v_cache, y;
  Tensor scratch;
  CachedAttentionAttributes at;

  explicit CachedAttention(const OpCall& c)
      : q(c.input(0)),
        k(c.input(1)),
        v(c.input(2)),
        slot(c.input(3)),
        position(c.input(4)),
        k_cache(c.input(5)),
        v_cache(c.input(6)),
        y(c.output(0)),
        scratch(c.scratch),
        at(c.attributes.as<CachedAttentionAttributes>()) {}

  std::int64_t head_size() const { return q.cols / at.heads; }
  std::int64_t group() const { return at.heads / at.kv_heads; }
};

std::vector<Shape> cached_attention_shapes(std::span<const Shape> in, const Attributes&);

}  // namespace thimble
