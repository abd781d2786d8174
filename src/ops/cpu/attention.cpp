#include "ops/attention.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "ops/cpu/attention_bf16.h"
#include "ops/cpu/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/attention.cpp"
#include <hwy/foreach_target.h>

#include "ops/cpu/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thimble::cpu {
namespace HWY_NAMESPACE {

// One row's running softmax meets the scores of another tile of keys: scores become weights, `highest` and
// `sum` move on, and what was collected so far is to be multiplied by the returned factor.
HWY_INLINE float online_softmax(float* score, std::int64_t count, float scale, float& highest, float& sum) {
  const float infinity = std::numeric_limits<float>::infinity();
  V32 top = all(-infinity);
  for_lanes(count, [&](auto at) HWY_ATTR {
    const V32 scaled = hn::Mul(at.load(score), all(scale));
    at.store(scaled, score);
    top = hn::Max(top, at.or_else(scaled, -infinity));
  });
  const float now = std::max(highest, max_of_lanes(top));
  // exp(-inf - -inf) would be NaN where nothing was collected yet.
  const float keep = highest == -infinity ? 0.0f : std::exp(highest - now);
  const float added = sum_lanes(count, [&](auto at) HWY_ATTR {
    const V32 weight = at.or_zero(exp_lanes(hn::Sub(at.load(score), all(now))));
    at.store(weight, score);
    return weight;
  });
  sum = sum * keep + added;
  highest = now;
  return keep;
}

// One block of queries, all heads that share a kv head.
void attention_block(const Attention& op, std::int64_t kv_head, Document document, std::int64_t block,
                     std::byte* scratch) {
  const std::int64_t D = op.head_size(), G = op.group(), wide = align_up(D, kTilePad);
  const std::int64_t rows = std::min(kTile, document.end - block);
  float* keys = reinterpret_cast<float*>(scratch);  // [D, kTile]
  float* values = keys + D * kTile;                 // [kTile, wide]
  float* scores = values + kTile * wide;            // [kTile, kTile]
  float* queries = scores + kTile * kTile;          // [G, kTile, wide]
  float* results = queries + G * kTile * wide;      // [G, kTile, wide]
  float* highest = results + G * kTile * wide;      // [G, kTile]
  float* sums = highest + G * kTile;                // [G, kTile]
  std::fill_n(results, G * kTile * wide, 0.0f);
  std::fill_n(highest, G * kTile, -std::numeric_limits<float>::infinity());
  std::fill_n(sums, G * kTile, 0.0f);
  for (std::int64_t g = 0; g < G; ++g)
    copy_tile({op.q, block, (kv_head * G + g) * D, rows, D}, queries + g * kTile * wide, wide);

  for (std::int64_t tile = document.begin; tile < block + rows; tile += kTile) {
    const std::int64_t count = std::min(kTile, block + rows - tile);
    transpose_tile({op.k, tile, kv_head * D, count, D}, keys, kTile);
    copy_tile({op.v, tile, kv_head * D, count, D}, values, wide);
    for (std::int64_t g = 0; g < G; ++g) {
      float* result = results + g * kTile * wide;
      tile_product(rows, count, D, {queries + g * kTile * wide, wide, 1}, keys, kTile, scores, kTile, false);
      for (std::int64_t r = 0; r < rows; ++r) {
        const std::int64_t visible = std::clamp<std::int64_t>(block + r - tile + 1, 0, count);
        float* score = scores + r * kTile;
        std::fill(score + visible, score + count, 0.0f);
        if (visible == 0) continue;
        const float keep =
            online_softmax(score, visible, op.at.scale, highest[g * kTile + r], sums[g * kTile + r]);
        for_lanes(D, [&](auto at) HWY_ATTR {
          at.store(hn::Mul(at.load(result + r * wide), all(keep)), result + r * wide);
        });
      }
      tile_product(rows, D, count, {scores, kTile, 1}, values, wide, result, wide, true);
    }
  }
  for (std::int64_t g = 0; g < G; ++g)
    for (std::int64_t r = 0; r < rows; ++r) {
      const std::int64_t h = kv_head * G + g;
      const float sum = sums[g * kTile + r];
      const float* result = results + (g * kTile + r) * wide;
      const Row y = Row(op.y, block + r) + h * D;
      for_lanes(D, [&](auto at) HWY_ATTR { at.store(hn::Div(at.load(result), all(sum)), y); });
      op.lse.row<float>(block + r)[h] = highest[g * kTile + r] + std::log(sum);
    }
}

}  // namespace HWY_NAMESPACE
}  // namespace thimble::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thimble::cpu {

HWY_EXPORT(attention_block);

std::int64_t attention_thread_bytes(const Shape& q, const AttentionAttributes& at) {
  const std::int64_t D = q.cols / at.heads, G = at.heads / at.kv_heads;
  return attention_in_bf16_pairs(q.dtype, D)
             ? std::max(attention_bf16_forward_bytes(D, G), attention_bf16_backward_bytes(q.rows, D))
             : std::max(attention_forward_bytes(D, G), attention_backward_bytes(q.rows, D, G));
}

void attention_forward(const Context&, const OpCall& call) {
  const Attention op(call);
  const bool in_pairs = attention_in_bf16_pairs(op.q.dtype, op.head_size());
  struct Block {
    Document document;
    std::int64_t begin;
  };
  std::vector<Block> blocks;
  for (const Document& document : documents_of(op))
    for (std::int64_t begin = document.begin; begin < document.end; begin += in_pairs ? kForwardBlock : kTile)
      blocks.push_back({document, begin});

  const ThreadScratch scratch(call.scratch, attention_thread_bytes(op.q.shape(), op.at), "attention");
  const auto count = static_cast<std::int64_t>(blocks.size());
  // Long blocks first: the last to finish are short.
  parallel_tasks(count * op.at.kv_heads, [&](std::int64_t task) {
    const Block& block = blocks[static_cast<std::size_t>(count - 1 - task / op.at.kv_heads)];
    const auto run = in_pairs ? attention_bf16_block : HWY_DYNAMIC_DISPATCH(attention_block);
    run(op, task % op.at.kv_heads, block.document, block.begin, scratch.mine());
  });
}

}  // namespace thimble::cpu
#endif
