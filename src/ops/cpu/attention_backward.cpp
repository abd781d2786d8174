#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "ops/attention.h"
#include "ops/cpu/attention_tiles.h"
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
  float *keys_t, *values_t;             // [D, kTile]
  float *keys, *dk, *dv, *q, *dy, *dq;  // [kTile, wide]
  float *weights, *dscores;             // [kTile, kTile]
  float* delta;                         // [kTile]

  BackwardTiles(float* scratch, std::int64_t D) : wide(align_up(D, kTilePad)) {
    const auto take = [&](std::int64_t floats) { return std::exchange(scratch, scratch + floats); };
    keys_t = take(D * kTile), values_t = take(D * kTile);
    for (float** tile : {&keys, &dk, &dv, &q, &dy, &dq}) *tile = take(kTile * wide);
    weights = take(kTile * kTile), dscores = take(kTile * kTile), delta = take(kTile);
  }
};

HWY_INLINE void put_tile(const float* tile, std::int64_t tile_row, const Tensor& out, std::int64_t row,
                         std::int64_t column, std::int64_t rows, std::int64_t cols, bool add) {
  for (std::int64_t r = 0; r < rows; ++r)
    for_lanes(cols, [&](auto at) HWY_ATTR {
      put(at, at.load(tile + r * tile_row), out.row<float>(row + r) + column, add);
    });
}

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

// One head's block of queries against one tile of keys.
HWY_INLINE void block_backward(const Attention& op, const BackwardTiles& t, std::int64_t h,
                               std::int64_t block, std::int64_t rows, std::int64_t tile, std::int64_t count,
                               bool first_tile) {
  const std::int64_t D = op.head_size(), wide = t.wide;
  copy_tile(op.q.row<float>(block) + h * D, op.q.stride, rows, D, t.q, wide);
  copy_tile(op.dy.row<float>(block) + h * D, op.dy.stride, rows, D, t.dy, wide);
  for (std::int64_t r = 0; r < rows; ++r)
    t.delta[r] = dot(t.dy + r * wide, op.y.row<float>(block + r) + h * D, D);

  tile_product(rows, count, D, {t.q, wide, 1}, t.keys_t, kTile, t.weights, kTile, false);
  tile_product(rows, count, D, {t.dy, wide, 1}, t.values_t, kTile, t.dscores, kTile, false);
  scores_backward(op, t, h, block, rows, tile, count);
  tile_product(count, D, rows, {t.weights, 1, kTile}, t.dy, wide, t.dv, wide, true);
  tile_product(count, D, rows, {t.dscores, 1, kTile}, t.q, wide, t.dk, wide, true);
  if (!op.dq) return;
  tile_product(rows, D, count, {t.dscores, kTile, 1}, t.keys, wide, t.dq, wide, false);
  put_tile(t.dq, wide, op.dq, block, h * D, rows, D, op.add_dq || !first_tile);
}

// A document under one kv head. Keys pass by in the outer loop, so dk and dv of a tile stay in cache, and dq
// of a row is added to in the order of its keys.
void attention_backward_document(const Attention& op, std::int64_t kv_head, Document document,
                                 float* scratch) {
  const std::int64_t D = op.head_size(), G = op.group();
  const BackwardTiles t(scratch, D);
  for (std::int64_t tile = document.begin; tile < document.end; tile += kTile) {
    const std::int64_t count = std::min(kTile, document.end - tile);
    const float* k = op.k.row<float>(tile) + kv_head * D;
    transpose_tile(k, op.k.stride, count, D, t.keys_t, kTile);
    transpose_tile(op.v.row<float>(tile) + kv_head * D, op.v.stride, count, D, t.values_t, kTile);
    copy_tile(k, op.k.stride, count, D, t.keys, t.wide);
    std::fill_n(t.dk, kTile * t.wide, 0.0f);
    std::fill_n(t.dv, kTile * t.wide, 0.0f);
    for (std::int64_t block = tile; block < document.end; block += kTile)
      for (std::int64_t g = 0; g < G; ++g)
        block_backward(op, t, kv_head * G + g, block, std::min(kTile, document.end - block), tile, count,
                       tile == document.begin);
    if (op.dk) put_tile(t.dk, t.wide, op.dk, tile, kv_head * D, count, D, op.add_dk);
    if (op.dv) put_tile(t.dv, t.wide, op.dv, tile, kv_head * D, count, D, op.add_dv);
  }
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
  const std::int64_t floats = align_up(backward_tile_floats(op.head_size()), kFloatsPerLine);
  check(call.scratch.cols >= floats * max_threads() * std::int64_t{sizeof(float)},
        "[attention] scratch was planned for fewer than {} threads", max_threads());
  float* scratch = static_cast<float*>(call.scratch.data);
  parallel_tasks(static_cast<std::int64_t>(documents.size()) * op.at.kv_heads, [&](std::int64_t task) {
    HWY_DYNAMIC_DISPATCH(attention_backward_document)
    (op, task % op.at.kv_heads, documents[static_cast<std::size_t>(task / op.at.kv_heads)],
     scratch + thread_index() * floats);
  });
}

}  // namespace thimble::cpu
#endif
