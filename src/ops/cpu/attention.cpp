// attention in f32 tiles for every dtype, and exclusive_attention.
//
// Forward runs a block of queries over the key tiles of its document with an online softmax.
// Backward runs a window of queries over the same tiles. Every product is between small tiles in
// cache. bf16 has separate kernels if the processor multiplies bf16 (attention.h).
#include "ops/cpu/attention.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/attention.cpp"
#include <hwy/foreach_target.h>

#include "ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thimble::cpu {
namespace HWY_NAMESPACE {

// The left factor: a(m, k) = data[m * row + k * column]. Swapping row and column transposes it.
struct Left {
  const float* data;
  std::int64_t row, column;
};

// R rows of the result, W vectors wide. Unrolled: at -O2 GCC would keep the sums in memory.
template <int R, int W>
HWY_INLINE void tile_strip(Left a, const float* b, std::int64_t b_row, std::int64_t depth, float* c,
                           std::int64_t c_row, bool add) {
  const F32 d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  V32 sum[R][W];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int w = 0; w < W; ++w) sum[r][w] = add ? hn::LoadU(d, c + r * c_row + w * lanes) : hn::Zero(d);
  for (std::int64_t k = 0; k < depth; ++k) {
    V32 right[W];
#pragma GCC unroll 8
    for (int w = 0; w < W; ++w) right[w] = hn::LoadU(d, b + k * b_row + w * lanes);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const V32 left = hn::Set(d, a.data[r * a.row + k * a.column]);
#pragma GCC unroll 8
      for (int w = 0; w < W; ++w) sum[r][w] = hn::MulAdd(left, right[w], sum[r][w]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int w = 0; w < W; ++w) hn::StoreU(sum[r][w], d, c + r * c_row + w * lanes);
}

template <int R>
HWY_INLINE void tile_rows(Left a, const float* b, std::int64_t b_row, std::int64_t depth, std::int64_t width,
                          float* c, std::int64_t c_row, bool add) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(F32()));
  std::int64_t n = 0;
  for (; n + 2 * lanes <= width; n += 2 * lanes) tile_strip<R, 2>(a, b + n, b_row, depth, c + n, c_row, add);
  for (; n < width; n += lanes) tile_strip<R, 1>(a, b + n, b_row, depth, c + n, c_row, add);
}

// c [rows, width] = a [rows, depth] b [depth, width], or c += a b. Rows of b and c are padded to
// whole vectors (kTilePad); results in the padding are undefined.
HWY_INLINE void tile_product(std::int64_t rows, std::int64_t width, std::int64_t depth, Left a,
                             const float* b, std::int64_t b_row, float* c, std::int64_t c_row, bool add) {
  // 6 x 2 sums, 2 right vectors and 1 left vector use 15 of the 16 registers of AVX2.
  std::int64_t m = 0;
  const auto from = [&](std::int64_t row) { return Left{a.data + row * a.row, a.row, a.column}; };
  for (; m + 6 <= rows; m += 6) tile_rows<6>(from(m), b, b_row, depth, width, c + m * c_row, c_row, add);
  for (; m + 2 <= rows; m += 2) tile_rows<2>(from(m), b, b_row, depth, width, c + m * c_row, c_row, add);
  for (; m < rows; ++m) tile_rows<1>(from(m), b, b_row, depth, width, c + m * c_row, c_row, add);
}

// A rectangle of an f32 or bf16 tensor that is copied to or from a tile.
struct Part {
  const Tensor& tensor;
  std::int64_t row, column, rows, cols;

  Row at(std::int64_t r) const { return Row(tensor, row + r) + column; }
};

// Copies a part into a tile; rows are padded with zeros.
HWY_INLINE void copy_tile(const Part& in, float* out, std::int64_t out_row) {
  for (std::int64_t r = 0; r < in.rows; ++r) {
    for_lanes(in.cols, [&](auto at) HWY_ATTR { at.store(at.load(in.at(r)), out + r * out_row); });
    for (std::int64_t c = in.cols; c < out_row; ++c) out[r * out_row + c] = 0;
  }
}

// out[c][r] = in[r][c]; the columns of out from in.rows on are set to zero.
HWY_INLINE void transpose_tile(const Part& in, float* out, std::int64_t out_row) {
  const auto read = [&](auto element) {
    for (std::int64_t r = 0; r < in.rows; ++r)
      for (std::int64_t c = 0; c < in.cols; ++c) out[c * out_row + r] = element(in.at(r), c);
  };
  in.at(0).is_f32() ? read([](Row row, std::int64_t c) { return row.floats()[c]; })
                    : read([](Row row, std::int64_t c) { return to_f32(row.bf16s()[c]); });
  for (std::int64_t c = 0; c < in.cols; ++c)
    for (std::int64_t r = in.rows; r < out_row; ++r) out[c * out_row + r] = 0;
}

// Stores or adds a tile.
HWY_INLINE void put_tile(const float* tile, std::int64_t tile_row, const Part& out, bool add) {
  for (std::int64_t r = 0; r < out.rows; ++r)
    for_lanes(out.cols, [&](auto at) HWY_ATTR { put(at, at.load(tile + r * tile_row), out.at(r), add); });
}

// cap tanh(x / cap); cap 0: x.
HWY_INLINE V32 capped(V32 x, float cap) {
  return cap > 0 ? hn::Mul(all(cap), tanh_lanes(hn::Mul(x, all(1 / cap)))) : x;
}

// One step of the online softmax of a row: scores of the next key tile become weights, and
// `highest` and `sum` are updated. Returns the factor by which the result so far must be
// multiplied.
HWY_INLINE float online_softmax(float* score, std::int64_t count, const AttentionAttributes& of,
                                float& highest, float& sum) {
  const float infinity = std::numeric_limits<float>::infinity();
  V32 top = all(-infinity);
  for_lanes(count, [&](auto at) HWY_ATTR {
    const V32 scaled = capped(hn::Mul(at.load(score), all(of.scale)), of.softcap);
    at.store(scaled, score);
    top = hn::Max(top, at.or_else(scaled, -infinity));
  });
  const float now = std::max(highest, max_of_lanes(top));
  // exp(-inf - -inf) would be NaN before the first tile.
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

// The keys of a tile that a query attends to: [begin, end), counted from the start of the tile.
struct Visible {
  std::int64_t begin, end;

  Visible(const Attention& op, std::int64_t query, std::int64_t tile, std::int64_t count)
      : begin(op.at.window > 0 ? std::clamp<std::int64_t>(query - op.at.window + 1 - tile, 0, count) : 0),
        end(std::clamp<std::int64_t>(query - tile + 1, 0, count)) {}
};

// One block of queries, for all heads that share a kv head.
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

  for (std::int64_t tile = first_tile(op, document, block); tile < block + rows; tile += kTile) {
    const std::int64_t count = std::min(kTile, block + rows - tile);
    transpose_tile({op.k, tile, kv_head * D, count, D}, keys, kTile);
    copy_tile({op.v, tile, kv_head * D, count, D}, values, wide);
    for (std::int64_t g = 0; g < G; ++g) {
      float* result = results + g * kTile * wide;
      tile_product(rows, count, D, {queries + g * kTile * wide, wide, 1}, keys, kTile, scores, kTile, false);
      for (std::int64_t r = 0; r < rows; ++r) {
        const Visible visible(op, block + r, tile, count);
        float* score = scores + r * kTile;
        std::fill(score, score + visible.begin, 0.0f);
        std::fill(score + visible.end, score + count, 0.0f);
        if (visible.begin >= visible.end) continue;
        const float keep = online_softmax(score + visible.begin, visible.end - visible.begin, op.at,
                                          highest[g * kTile + r], sums[g * kTile + r]);
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

// The tiles of one thread, allocated from its scratch.
struct BackwardTiles {
  std::int64_t wide;
  float *keys_t, *values_t;        // [D, kTile]
  float *keys, *dk, *dv, *q, *dy;  // [kTile, wide]
  float *weights, *dscores;        // [kTile, kTile]
  float* delta;                    // [kTile]
  float* dq;                       // [rows of the window, G, wide]

  BackwardTiles(std::byte* scratch, std::int64_t D) : wide(align_up(D, kTilePad)) {
    float* next = reinterpret_cast<float*>(scratch);
    const auto take = [&](std::int64_t floats) { return std::exchange(next, next + floats); };
    keys_t = take(D * kTile), values_t = take(D * kTile);
    for (float** tile : {&keys, &dk, &dv, &q, &dy}) *tile = take(kTile * wide);
    weights = take(kTile * kTile), dscores = take(kTile * kTile), delta = take(kTile);
    dq = next;
  }
};

// Weights p from scores q.k, and ds = p (dp - delta) scale from dp = dy.v; masked entries are 0.
HWY_INLINE void scores_backward(const Attention& op, const BackwardTiles& t, std::int64_t h,
                                std::int64_t block, std::int64_t rows, std::int64_t tile,
                                std::int64_t count) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const Visible visible(op, block + r, tile, count);
    float* weight = t.weights + r * kTile;
    float* ds = t.dscores + r * kTile;
    const V32 lse = all(op.lse.row<float>(block + r)[h]), scale = all(op.at.scale), delta = all(t.delta[r]);
    const float cap = op.at.softcap;
    const std::int64_t begin = visible.begin;
    for_lanes(visible.end - begin, [&](auto at) HWY_ATTR {
      const V32 score = capped(hn::Mul(at.load(weight + begin), scale), cap);
      const V32 p = exp_lanes(hn::Sub(score, lse));
      V32 slope = scale;
      if (cap > 0) {
        const V32 share = hn::Mul(score, all(1 / cap));
        slope = hn::Mul(scale, hn::NegMulAdd(share, share, all(1)));
      }
      at.store(hn::Mul(hn::Mul(p, hn::Sub(at.load(ds + begin), delta)), slope), ds + begin);
      at.store(p, weight + begin);
    });
    for (float* row : {weight, ds}) {
      std::fill(row, row + begin, 0.0f);
      std::fill(row + visible.end, row + count, 0.0f);
    }
  }
}

// One head's block of queries and one tile of keys. Adds to dq [rows, G, wide].
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

// Queries [begin, end) of a document under one kv head. The outer loop runs over keys, so dk and dv
// of a tile stay in cache, and dq of a row is summed in the order of its keys.
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
    // With a window, later queries attend to none of these keys.
    const std::int64_t last = op.at.window > 0 ? std::min(end, tile + count - 1 + op.at.window) : end;
    for (std::int64_t block = std::max(begin, tile); block < last; block += kTile)
      for (std::int64_t g = 0; g < G; ++g)
        block_backward(op, t, kv_head * G + g, block, std::min(kTile, end - block), tile, count,
                       t.dq + (block - begin) * pitch + g * t.wide);
    const bool first = tile >= begin;  // the first window that includes this tile
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

HWY_INLINE float inverse_length(Row v, std::int64_t count) {
  const float length = std::sqrt(dot(v, v, count));
  // Not std::max, which would drop a NaN.
  return 1.0f / (length < static_cast<float>(kMinValueNorm) ? static_cast<float>(kMinValueNorm) : length);
}

void exclusive_attention_rows(const ExclusiveAttention& op, std::int64_t begin, std::int64_t end) {
  const std::int64_t D = op.head_size(), G = op.group();
  for (std::int64_t n = begin; n < end; ++n)
    for (std::int64_t h = 0; h < op.at.heads; ++h) {
      const Row y = Row(op.y, n) + h * D;
      const Row v = Row(op.v, n) + h / G * D;
      const float inverse = inverse_length(v, D);
      const V32 share = all(-dot(y, v, D) * inverse * inverse);
      for_lanes(D, [&](auto at) HWY_ATTR {
        at.store(hn::MulAdd(share, at.load(v), at.load(y)), Row(op.z, n) + h * D);
      });
    }
}

// Per head: `a` scales v in dy and y in dv; `b` scales dz in dv; `c` scales v in dv.
struct HeadFactors {
  float a, b, c;
};

HWY_INLINE HeadFactors head_factors(Row y, Row dz, Row v, float inverse, std::int64_t D) {
  const float yu = dot(y, v, D) * inverse, zu = dot(dz, v, D) * inverse;
  return {-zu * inverse, -yu * inverse, 2 * yu * zu * inverse * inverse};
}

// Heads of a group share dv, which is summed over up to 16 heads before it is stored.
void exclusive_attention_backward_rows(const ExclusiveAttention& op, std::int64_t begin, std::int64_t end) {
  constexpr std::int64_t kHeadsAtOnce = 16;
  const std::int64_t D = op.head_size(), G = op.group();
  for (std::int64_t n = begin; n < end; ++n)
    for (std::int64_t kv = 0; kv < op.at.kv_heads; ++kv) {
      const Row v = Row(op.v, n) + kv * D;
      const float inverse = inverse_length(v, D);
      for (std::int64_t g = 0; g < G; g += kHeadsAtOnce) {
        const std::int64_t heads = std::min(kHeadsAtOnce, G - g), column = (kv * G + g) * D;
        const Row y = Row(op.y, n) + column, dz = Row(op.dz, n) + column;
        HeadFactors of[kHeadsAtOnce];
        for (std::int64_t h = 0; h < heads; ++h) of[h] = head_factors(y + h * D, dz + h * D, v, inverse, D);
        for_lanes(D, [&](auto at) HWY_ATTR {
          const V32 value = at.load(v);
          V32 dv = hn::Zero(F32());
          for (std::int64_t h = 0; h < heads; ++h) {
            const V32 of_z = at.load(dz + h * D), a = all(of[h].a);
            if (op.dy) put(at, hn::MulAdd(a, value, of_z), Row(op.dy, n) + (column + h * D), op.add_dy);
            dv = hn::Add(dv, hn::MulAdd(a, at.load(y + h * D),
                                        hn::MulAdd(all(of[h].b), of_z, hn::Mul(all(of[h].c), value))));
          }
          if (op.dv) put(at, dv, Row(op.dv, n) + kv * D, op.add_dv || g > 0);
        });
      }
    }
}

}  // namespace HWY_NAMESPACE
}  // namespace thimble::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thimble::cpu {

HWY_EXPORT(attention_block);
HWY_EXPORT(attention_backward_document);
HWY_EXPORT(exclusive_attention_rows);
HWY_EXPORT(exclusive_attention_backward_rows);

namespace {

// Scratch bytes per thread. Forward keeps the results of all heads of a group.
std::int64_t attention_forward_bytes(std::int64_t head_size, std::int64_t group) {
  const std::int64_t wide = align_up(head_size, kTilePad);
  const std::int64_t floats = (head_size + wide + kTile) * kTile + group * kTile * (2 * wide + 2);
  return floats * static_cast<std::int64_t>(sizeof(float));
}

std::int64_t attention_backward_bytes(std::int64_t rows, std::int64_t head_size, std::int64_t group) {
  const std::int64_t wide = align_up(head_size, kTilePad);
  const std::int64_t floats =
      2 * head_size * kTile + 5 * kTile * wide + 2 * kTile * kTile + kTile + group * window_rows(rows) * wide;
  return floats * static_cast<std::int64_t>(sizeof(float));
}

// The maximum of forward and backward, for the kernels that will run.
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
  // Blocks with the most keys first, so that the last tasks to finish are short.
  parallel_tasks(count * op.at.kv_heads, [&](std::int64_t task) {
    const Block& block = blocks[static_cast<std::size_t>(count - 1 - task / op.at.kv_heads)];
    const auto run = in_pairs ? attention_bf16_block : HWY_DYNAMIC_DISPATCH(attention_block);
    run(op, task % op.at.kv_heads, block.document, block.begin, scratch.mine());
  });
}

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

void exclusive_attention_forward(const Context&, const OpCall& call) {
  const ExclusiveAttention op(call);
  parallel_for(op.y.rows, rows_per_task(op.y.cols), [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(exclusive_attention_rows)(op, begin, end);
  });
}

void exclusive_attention_backward(const Context&, const OpCall& call) {
  const ExclusiveAttention op(call);
  parallel_for(op.y.rows, rows_per_task(op.y.cols), [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(exclusive_attention_backward_rows)(op, begin, end);
  });
}

std::int64_t attention_scratch_bytes(std::span<const Shape> in, const Attributes& attributes) {
  return ThreadScratch::bytes(attention_thread_bytes(in[0], attributes.as<AttentionAttributes>()));
}

}  // namespace

constinit const Kernels kAttention = {.forward = attention_forward,
                                      .backward = attention_backward,
                                      .rows = dtypes({DType::f32, DType::bf16}),
                                      .scratch_bytes = attention_scratch_bytes};
constinit const Kernels kExclusiveAttention = {.forward = exclusive_attention_forward,
                                               .backward = exclusive_attention_backward,
                                               .rows = dtypes({DType::f32, DType::bf16}),
                                               .wide_gradients = true};

}  // namespace thimble::cpu
#endif
