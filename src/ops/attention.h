// Attention: over a batch (attention), over a cache (cached_attention), and exclusive attention.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "graph/op.h"
#include "graph/tape.h"

namespace thimble {

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

// exclusive attention (parameter-golf 2.14): takes out of each head's result what its own value already says.
//
//   z = y - (y . u) u,  u = v / max(|v|, 1e-12),  v of the same row and the head's kv head
//
//   y [N, H D]   v [N, K D]   z [N, H D]
//
// backward: dy <- dz - (dz . u) u
//           dv <- -1/|v| * sum over the group's heads of ((dz . u) y + (y . u) dz - 2 (y . u)(dz . u) u)

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

// cached attention: inference. Each row appends its k and v to its slot, then attends to all the slot holds so far.
//
//   q [N, H D]   k, v [N, K D]   slot [N] i32   position [N] i32 < context
//   slot -1 (on a GPU): a row that fills a step up to its recorded size; nothing is appended, y is 0
//   k_cache, v_cache [slots * context, K D], in the dtype of k and v: slot s holds rows s * context ...; written here:
//   state, not inputs
//   y[n, h] = sum over m in [0, position[n]] of softmax_m(scale q[n, h] . k_cache[slot, m]) v_cache[slot, m]
//
// Rows of one slot must come in order of position (a prompt's block); rows of different slots in any order. All rows
// are appended before any attends. Batch-invariant: a row gives the same bits whatever rows share the call. A GPU holds
// to it for up to 64 rows, with H D and K D multiples of 8.

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

namespace cpu {
extern const Kernels kAttention, kExclusiveAttention, kCachedAttention;
}  // namespace cpu

namespace op {

extern const OpDefinition kAttention, kExclusiveAttention, kCachedAttention;

Value attention(Tape& tape, Value q, Value k, Value v, Value first, int heads, int kv_heads, float scale);
Value exclusive_attention(Tape& tape, Value y, Value v, int heads, int kv_heads);
Value cached_attention(Tape& tape, Value q, Value k, Value v, Value slot, Value position, Value k_cache,
                       Value v_cache, int heads, int kv_heads, int context, float scale);

}  // namespace op

}  // namespace thimble
