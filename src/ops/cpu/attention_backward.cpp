#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "ops/attention.h"
#include "ops/cpu/attention_bf16.h"
#include "ops/cpu/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/attention_backward.cpp"
#include <hwy/foreach_target.h>

#include "ops/cpu/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thimble::cpu {
namespace HWY_NAMESPACE {

// One thread's tiles, cut from its scratch.
struct BackwardTiles {
  std::int64_t wide;
  float *keys_t, *values_t;        // [D, kTile]
  float *keys, *dk, *dv, *q, *dy;  // [kTile, wide]
  float *weights, *dscores;        // [kTile, kTile]
  float* delta;                    // [kTile]
  float* dq;                       // [rows of the window, G, wide]

  BackwardTiles(std::byte* scratch, std::int64_t D) : wide(align_up(D, kTilePad)) {
    float* place = reinterpret_cast<float*>(scratch);
    const auto take = [&](std::int64_t floats) { return std::exchange(place, place + floats); };
    keys_t = take(D * kTile), values_t = take(D * kTile);
    for (float** tile : {&keys, &dk, &dv, &q, &dy}) *tile = take(kTile * wide);
    weights = take(kTile * kTile), dscores = take(kTile * kTile), delta = take(kTile);
    dq = place;
  }
};

// Weights p from scores q.k, and ds = p (dp - delta) scale from dp = dy.v; what a query may not see is 0.
HWY_INLINE void scores_backward(const Attention& op, const BackwardTiles& t, std::int64_t h,
                                std::int64_t block, std::int64_t rows, std::int64_t tile,
                                std::int64_t count) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t visible = std::clamp<std::int64_t>(block + r - tile + 1, 0, count);
    float* weight = t.weights + r * kTile;
    float* ds = t.dscores + r * kTile;
    const V32 lse = all(op.lse.row<float>(block + r)[h]), scale = all(op.at.scale), delta = all(t.delta[r]);
    for_lanes(visible, [&](auto at) HWY_ATTR {
      const V32 p = exp_lanes(hn::Sub(hn::Mul(at.load(weight), scale), lse));
      at.store(hn::Mul(hn::Mul(p, hn::Sub(at.load(ds), delta)), scale), ds);
      at.store(p, weight);
    });
    std::fill(weight + visible, weight + count, 0.0f);
    std::fill(ds + visible, ds + count, 0.0f);
  }
}

// One head's block of queries against one tile of keys. dq [rows, G, wide] is added to.
HWY_INLINE void block_backward(const Attention& op, const BackwardTiles& t, std::int64_t h,
                               std::int64_t block, std::int64_t rows, std::int64_t tile, std::int64_t count,
                               float* dq) {
  const std::int64_t D = op.head_size(), wide = t.wide;
  copy_tile({op.q, block, h * D, rows, D}, t.q, wide);
  copy_tile({op.dy, block, h * D, rows, D}, t.dy, wide);
  for (std::int64_t r = 0; r < rows; ++r) t.delta[r] = dot(t.dy + r * wide, Row(op.y, block + r) + h * D, D);

  tile_product(rows, count, D, {t.q, wide, 1}, t.keys_t, kTile, t.weights, kTile, false);
  tile_product(rows, count, D, {t.dy, wide, 1}, t.values_t, kTile, t.dscores, kTile, false);
  scores_backward(op, t, h, block, rows, tile, count);
  tile_product(count, D, rows, {t.weights, 1, kTile}, t.dy, wide, t.dv, wide, true);
  tile_product(count, D, rows, {t.dscores, 1, kTile}, t.q, wide, t.dk, wide, true);
  if (op.dq) tile_product(rows, D, count, {t.dscores, kTile, 1}, t.keys, wide, dq, op.group() * wide, true);
}

// The queries [begin, end) of a document under one kv head. Keys pass by in the outer loop, so dk and dv of a
// tile stay in cache, and dq of a row is added to in the order of its keys.
HWY_INLINE void window_backward(const Attention& op, const BackwardTiles& t, std::int64_t kv_head,
                                Document document, std::int64_t begin, std::int64_t end) {
  const std::int64_t D = op.head_size(), G = op.group(), pitch = G * t.wide;
  std::fill_n(t.dq, (end - begin) * pitch, 0.0f);
  for (std::int64_t tile = document.begin; tile < end; tile += kTile) {
    const std::int64_t count = std::min(kTile, document.end - tile);
    transpose_tile({op.k, tile, kv_head * D, count, D}, t.keys_t, kTile);
    transpose_tile({op.v, tile, kv_head * D, count, D}, t.values_t, kTile);
    copy_tile({op.k, tile, kv_head * D, count, D}, t.keys, t.wide);
    std::fill_n(t.dk, kTile * t.wide, 0.0f);
    std::fill_n(t.dv, kTile * t.wide, 0.0f);
    for (std::int64_t block = std::max(begin, tile); block < end; block += kTile)
      for (std::int64_t g = 0; g < G; ++g)
        block_backward(op, t, kv_head * G + g, block, std::min(kTile, end - block), tile, count,
                       t.dq + (block - begin) * pitch + g * t.wide);
    const bool first = tile >= begin;  // of the windows that see this tile
    if (op.dk) put_tile(t.dk, t.wide, {op.dk, tile, kv_head * D, count, D}, op.add_dk || !first);
    if (op.dv) put_tile(t.dv, t.wide, {op.dv, tile, kv_head * D, count, D}, op.add_dv || !first);
  }
  for (std::int64_t g = 0; op.dq && g < G; ++g)
    put_tile(t.dq + g * t.wide, pitch, {op.dq, begin, (kv_head * G + g) * D, end - begin, D}, op.add_dq);
}

void attention_backward_document(const Attention& op, std::int64_t kv_head, Document document,
                                 std::byte* scratch) {
  const BackwardTiles t(scratch, op.head_size());
  for (std::int64_t begin = document.begin; begin < document.end; begin += kWindow)
    window_backward(op, t, kv_head, document, begin, std::min(begin + kWindow, document.end));
}

}  // namespace HWY_NAMESPACE
}  // namespace thimble::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thimble::cpu {

HWY_EXPORT(attention_backward_document);

void attention_backward(const Context&, const OpCall& call) {
  const Attention op(call);
  const std::vector<Document> documents = documents_of(op);
  const ThreadScratch scratch(call.scratch, attention_thread_bytes(op.q.shape(), op.at), "attention");
  const auto run = attention_in_bf16_pairs(op.q.dtype, op.head_size())
                       ? attention_bf16_backward_document
                       : HWY_DYNAMIC_DISPATCH(attention_backward_document);
  parallel_tasks(static_cast<std::int64_t>(documents.size()) * op.at.kv_heads, [&](std::int64_t task) {
    run(op, task % op.at.kv_heads, documents[static_cast<std::size_t>(task / op.at.kv_heads)],
        scratch.mine());
  });
}

}  // namespace thimble::cpu
#endif
