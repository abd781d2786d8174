// Attention over a batch (attention), over a KV cache (cached_attention), and exclusive attention.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "graph/op.h"
#include "graph/tape.h"

namespace thimble {

// attention: causal softmax attention within each document, with grouped queries
//
//   q      [N, H D]  H is divisible by K       y    [N, H D]
//   k, v   [N, K D]                            lse  [N, H]  cached for backward
//   first  [N] i32   first row of row n's document; non-decreasing, first[n] <= n
//
//   y[n, h] = sum over m in [a, n] of softmax_m(s) v[m, j],  s = scale q[n, h] . k[m, j],
//             with kv head j = h K / H, rounded down, and a = first[n], but with a window at least
//             n - window + 1
//   lse     = log of the softmax denominator
//   softcap > 0: s is replaced by softcap tanh(s / softcap)
//
// backward, with p = exp(scale q.k - lse) and delta[n, h] = dy[n, h] . y[n, h]:
//   dv[m] <- sum over n, h of p dy[n, h]
//   ds = p (dy[n, h] . v[m] - delta[n, h]) scale,  times 1 - tanh^2 with a softcap
//   dq[n, h] <- sum over m of ds k[m]        dk[m] <- sum over n, h of ds q[n, h]
//
// In bf16, p and ds are rounded before they are multiplied again, and sums are f32. dq, dk and dv
// are rounded once per 1024 rows of their document.
//
// Kernels work in tiles and never store a [T, T] matrix of scores. Sums run in program order, so
// the bits depend neither on the number of threads nor on the position of a document in the batch.
// NaN and infinity propagate, possibly to other rows of the same document.

struct AttentionAttributes {
  std::int32_t heads = 1, kv_heads = 1;
  float scale = 1;
  float softcap = 0;        // 0: off
  std::int32_t window = 0;  // tokens that a row attends to, with itself; 0: all
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
  // The first row that row n attends to.
  std::int64_t first_key(std::int64_t n) const {
    const std::int64_t document = *first.row<std::int32_t>(n);
    return at.window > 0 ? std::max(document, n - at.window + 1) : document;
  }
};

// exclusive attention (XSA): removes from each head's result its projection on the row's own value.
//
//   z = y - (y . u) u,  u = v / max(|v|, 1e-12),  v of the same row and the head's kv head
//
//   y  [N, H D]   v  [N, K D]   z  [N, H D]
//
// backward: dy <- dz - (dz . u) u
//           dv <- -1/|v| * sum over the group's heads of
//                          ((dz . u) y + (y . u) dz - 2 (y . u)(dz . u) u)

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

inline constexpr double kMinValueNorm = 1e-12;

// cached attention, for inference: each row appends its k and v to its slot of the cache, then
// attends to everything in that slot up to its own position.
//
//   q     [N, H D]   slot      [N] i32  -1 (GPU only): padding row; nothing is appended, y is 0
//   k, v  [N, K D]   position  [N] i32  < context, or any with a window: see below
//   k_cache, v_cache  [slots * context, K D]  in the dtype of k and v; position p of slot s is in
//                     row s * context + p % context. The op writes to them: they are state, not
//                     inputs.
//
//   y[n, h] = sum over m in [0, position[n]] of
//             softmax_m(scale q[n, h] . k_cache[slot, m]) v_cache[slot, m]
//
// softcap and window: as in attention, with position[n] - window + 1 as the least m. With a window,
// a slot may be a ring that keeps the last `context` positions. Then context is a multiple of 64,
// and at least window + R - 1, where R is the number of rows of a slot in a call.
//
// Rows of one slot must come in order of position; rows of different slots may come in any order.
// All rows are appended before any row attends. Batch-invariant: the other rows of a call do not
// change the bits of a row. On a GPU this holds for up to 64 rows, with H D and K D multiples of 8.

struct CachedAttentionAttributes {
  std::int32_t heads = 1, kv_heads = 1, context = 1;
  float scale = 1;
  float softcap = 0;
  std::int32_t window = 0;
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

namespace cpu {
extern const Kernels kAttention, kExclusiveAttention, kCachedAttention;
}  // namespace cpu

namespace op {

extern const OpDefinition kAttention, kExclusiveAttention, kCachedAttention;

Value attention(Tape& tape, Value q, Value k, Value v, Value first, const AttentionAttributes& attributes);
Value exclusive_attention(Tape& tape, Value y, Value v, int heads, int kv_heads);
Value cached_attention(Tape& tape, Value q, Value k, Value v, Value slot, Value position, Value k_cache,
                       Value v_cache, const CachedAttentionAttributes& attributes);

}  // namespace op

}  // namespace thimble
