// Attention in bf16 with AVX-512 BF16, and AMX if the processor has it. Scores are transposed,
// [keys, queries], so that each query is a lane and no sum crosses lanes. All products are of bf16
// tiles with f32 sums (bf16_tiles.h, amx_tiles.h):
//
//   forward   S^T = K Q^T     Y^T += V^T P^T
//   backward  S^T = K Q^T     dP^T = V dY^T     dV += P^T dY     dK += dS^T Q     dQ^T += K^T dS^T
//
// P and dS are rounded to bf16 before they are multiplied again.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "base/error.h"
#include "ops/cpu/amx_tiles.h"
#include "ops/cpu/attention.h"

namespace thimble::cpu {

namespace {

// A tile of queries under one head, and its partial results.
struct QueryTile {
  std::int64_t block, head;
  std::uint32_t* queries;  // Q^T in pairs [D / 2, kTile]
  float* result;           // Y^T [D, kTile], not yet divided by the sum
  float *highest, *sum;    // [kTile]; highest: the maximum score so far, times log2(e)
};

struct ForwardTiles {
  bf16* keys;                  // [kTile, D]
  std::uint32_t* value_pairs;  // V in pairs [kTile / 2, D]
  std::uint32_t* values_t;     // V^T [D, kTile] of bf16
  float* scores;               // S^T [kTile, kTile]
  std::uint32_t* weights;      // P^T in pairs [kTile / 2, kTile]
  float* keep;                 // [kTile]
  QueryTile* tiles;            // [group * kForwardBlock / kTile]

  ForwardTiles(ScratchCutter& cutter, std::int64_t D, std::int64_t group) {
    cutter.take(keys, kTile * D);
    cutter.take(value_pairs, kTile / 2 * D);
    cutter.take(values_t, kTile / 2 * D);
    cutter.take(scores, kTile * kTile);
    cutter.take(weights, kTile / 2 * kTile);
    cutter.take(keep, kTile);
    const std::int64_t count = group * (kForwardBlock / kTile);
    cutter.take(tiles, count);
    for (std::int64_t i = 0; i < count; ++i) {
      QueryTile unmeasured;
      QueryTile& tile = tiles ? tiles[i] : unmeasured;
      cutter.take(tile.queries, D / 2 * kTile);
      cutter.take(tile.result, D * kTile);
      cutter.take(tile.highest, kTile);
      cutter.take(tile.sum, kTile);
    }
  }
};

// The tiles of one thread: a window of keys, and one tile of queries under one head.
struct BackwardTiles {
  bf16 *keys, *values;              // [window, D]
  std::uint32_t* keys_t;            // K^T of every tile: [D, kTile] of bf16
  float *dk, *dv;                   // [window, D]
  std::uint32_t *queries_t, *dy_t;  // Q^T and dY^T in pairs [D / 2, kTile]
  std::uint32_t *queries, *dy;      // Q and dY in pairs [kTile / 2, D]
  float *minus_lse, *delta;         // [kTile]; minus_lse: times log2(e)
  float* dq_t;                      // [D, kTile]
  float *scores, *dweights;         // S^T and dP^T [kTile, kTile]
  bf16 *weights, *dscores;          // P^T and dS^T [kTile, kTile]
  std::uint32_t* dscore_pairs;      // dS^T in pairs [kTile / 2, kTile]

  BackwardTiles(ScratchCutter& cutter, std::int64_t window, std::int64_t D) {
    for (bf16** rows : {&keys, &values}) cutter.take(*rows, window * D);
    cutter.take(keys_t, window / 2 * D);
    for (float** rows : {&dk, &dv}) cutter.take(*rows, window * D);
    for (std::uint32_t** tile : {&queries_t, &dy_t, &queries, &dy}) cutter.take(*tile, kTile / 2 * D);
    for (float** row : {&minus_lse, &delta}) cutter.take(*row, kTile);
    cutter.take(dq_t, D * kTile);
    for (float** tile : {&scores, &dweights}) cutter.take(*tile, kTile * kTile);
    for (bf16** tile : {&weights, &dscores}) cutter.take(*tile, kTile * kTile);
    cutter.take(dscore_pairs, kTile / 2 * kTile);
  }
};

}  // namespace

std::int64_t attention_bf16_forward_bytes(std::int64_t head_size, std::int64_t group) {
  ScratchCutter cutter;
  ForwardTiles(cutter, head_size, group);
  return cutter.bytes();
}

std::int64_t attention_bf16_backward_bytes(std::int64_t rows, std::int64_t head_size) {
  ScratchCutter cutter;
  BackwardTiles(cutter, window_rows(rows), head_size);
  return cutter.bytes();
}

#if defined(__x86_64__)

namespace {

using pairs::Into;
using pairs::kLanes;

constexpr std::int64_t kHalf = kTile / 2;  // half a tile, the unit on the diagonal
constexpr int kVectors = kTile / pairs::kLanes;

// Which queries of a tile attend to which keys of another.
struct Mask {
  std::int64_t offset;  // of the first key from the first query: 0 on the diagonal, else negative
  std::int64_t keys, window;

  Mask(const Attention& op, std::int64_t block, std::int64_t key, std::int64_t count)
      : offset(key - block), keys(count), window(op.at.window > 0 ? op.at.window : op.q.rows + kTile) {}

  // Whether every query attends to every key.
  bool hides_nothing() const { return offset < 0 && offset + window >= kTile; }
  // Bit n: query n attends to key m. Queries up to m + window - 1 do.
  std::uint64_t of(std::int64_t m) const {
    const std::int64_t from = std::max<std::int64_t>(offset + m, 0), end = offset + m + window;
    if (m >= keys || end <= 0) return 0;
    const std::uint64_t seen = ~std::uint64_t{0} << from;
    return end >= kTile ? seen : seen & ((std::uint64_t{1} << end) - 1);
  }
};

constexpr __mmask16 lanes_of(std::uint64_t mask, int vector) {
  return static_cast<__mmask16>(mask >> (vector * pairs::kLanes));
}

// Caps the products q.k of a tile so that scale times a product is the capped score.
THIMBLE_BF16_PAIRS void cap_products(const Attention& op, float* products, std::int64_t keys) {
  if (op.at.softcap == 0) return;
  const float cap = op.at.softcap / op.at.scale, over_cap = op.at.scale / op.at.softcap;
  for (std::int64_t i = 0; i < keys * kTile; i += pairs::kLanes)
    _mm512_storeu_ps(products + i, pairs::capped(_mm512_loadu_ps(products + i), cap, over_cap));
}

// One step of the online softmax of each query: the scores of a key tile become weights in pairs,
// and `keep` becomes the factor for the result so far.
template <bool masked>
THIMBLE_BF16_PAIRS void online_softmax(const ForwardTiles& t, const QueryTile& tile, const Mask& mask,
                                       float scale) {
  const std::int64_t keys = mask.keys;
  const __m512 minus_infinity = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
  const __m512 factor = _mm512_set1_ps(scale * std::numbers::log2e_v<float>);
  __m512 top[kVectors], sum[kVectors];
#pragma GCC unroll 4
  for (int w = 0; w < kVectors; ++w) top[w] = _mm512_loadu_ps(tile.highest + w * pairs::kLanes);
  for (std::int64_t m = 0; m < keys; ++m) {
    const std::uint64_t seen = masked ? mask.of(m) : 0;
#pragma GCC unroll 4
    for (int w = 0; w < kVectors; ++w) {
      __m512 score = _mm512_mul_ps(_mm512_loadu_ps(t.scores + m * kTile + w * pairs::kLanes), factor);
      if (masked) score = _mm512_mask_mov_ps(minus_infinity, lanes_of(seen, w), score);
      top[w] = _mm512_max_ps(top[w], score);
    }
  }
#pragma GCC unroll 4
  for (int w = 0; w < kVectors; ++w) {
    float* highest = tile.highest + w * pairs::kLanes;
    _mm512_storeu_ps(t.keep + w * pairs::kLanes, _mm512_loadu_ps(highest));
    _mm512_storeu_ps(highest, top[w]);
    // Hidden keys only, so far: -infinity minus -infinity would be NaN.
    if (masked)
      top[w] = _mm512_mask_mov_ps(top[w], _mm512_cmp_ps_mask(top[w], minus_infinity, _CMP_EQ_OQ),
                                  _mm512_setzero_ps());
    const __m512 keep =
        pairs::power_of_two(_mm512_sub_ps(_mm512_loadu_ps(t.keep + w * pairs::kLanes), top[w]));
    _mm512_storeu_ps(t.keep + w * pairs::kLanes, keep);
    sum[w] = _mm512_mul_ps(_mm512_loadu_ps(tile.sum + w * pairs::kLanes), keep);
  }
  for (std::int64_t m = 0; m < keys; m += 2) {
    const std::uint64_t seen[2] = {masked ? mask.of(m) : 0, masked ? mask.of(m + 1) : 0};
#pragma GCC unroll 4
    for (int w = 0; w < kVectors; ++w) {
      __m512 weight[2];
#pragma GCC unroll 2
      for (int i = 0; i < 2; ++i) {
        const __m512 score = _mm512_loadu_ps(t.scores + (m + i) * kTile + w * pairs::kLanes);
        weight[i] = pairs::power_of_two(_mm512_fmsub_ps(score, factor, top[w]));
        if (masked) weight[i] = _mm512_maskz_mov_ps(lanes_of(seen[i], w), weight[i]);
      }
      sum[w] = _mm512_add_ps(sum[w], _mm512_add_ps(weight[0], weight[1]));
      _mm512_storeu_si512(t.weights + m / 2 * kTile + w * pairs::kLanes,
                          pairs::pair_up(weight[0], weight[1]));
    }
  }
#pragma GCC unroll 4
  for (int w = 0; w < kVectors; ++w) _mm512_storeu_ps(tile.sum + w * pairs::kLanes, sum[w]);
}

// Queries [from, from + width) and the first `keys` keys of a tile.
struct TilePart {
  std::int64_t from, width, keys;
};

THIMBLE_BF16_PAIRS void score(const Attention& op, const ForwardTiles& t, const QueryTile& tile,
                              TilePart part) {
  const std::int64_t D = op.head_size();
  tiles::fastest_product<pairs::Into::store>(part.keys, part.width, D / 2, t.keys, D,
                                             tile.queries + part.from, kTile, t.scores + part.from, kTile);
}

THIMBLE_BF16_PAIRS void accumulate(const Attention& op, const ForwardTiles& t, const QueryTile& tile,
                                   TilePart part, bool first) {
  const auto product = first ? tiles::fastest_product<pairs::Into::store>
                             : tiles::fastest_product<pairs::Into::rescale_and_add>;
  product(op.head_size(), part.width, (part.keys + 1) / 2, reinterpret_cast<const bf16*>(t.values_t), kTile,
          t.weights + part.from, kTile, tile.result + part.from, kTile, t.keep + part.from);
}

THIMBLE_BF16_PAIRS void attend_tile(const Attention& op, const ForwardTiles& t, const QueryTile& tile,
                                    std::int64_t key, std::int64_t keys, bool first) {
  const Mask mask(op, tile.block, key, keys);
  if (key < tile.block) {
    score(op, t, tile, {0, kTile, keys});
    cap_products(op, t.scores, keys);
    (mask.hides_nothing() ? online_softmax<false> : online_softmax<true>)(t, tile, mask, op.at.scale);
    return accumulate(op, t, tile, {0, kTile, keys}, first);
  }
  // On the diagonal, no query in a half of the tile attends to keys after that half.
  for (std::int64_t from = 0; from < keys; from += kHalf)
    score(op, t, tile, {from, kHalf, std::min(keys, from + kHalf)});
  cap_products(op, t.scores, keys);
  online_softmax<true>(t, tile, mask, op.at.scale);
  for (std::int64_t from = 0; from < keys; from += kHalf)
    accumulate(op, t, tile, {from, kHalf, std::min(keys, from + kHalf)}, first);
}

THIMBLE_BF16_PAIRS void finish(const Attention& op, const QueryTile& tile, std::int64_t rows) {
  const std::int64_t D = op.head_size();
  float inverse[kTile];
  for (std::int64_t r = 0; r < kTile; ++r) inverse[r] = 1 / tile.sum[r];
  pairs::put_transposed(tile.result, kTile, D, rows, inverse, op.y.row<bf16>(tile.block) + tile.head * D,
                        op.y.stride, false);
  for (std::int64_t r = 0; r < rows; ++r)
    op.lse.row<float>(tile.block + r)[tile.head] =
        tile.highest[r] * std::numbers::ln2_v<float> + std::log(tile.sum[r]);
}

}  // namespace

THIMBLE_BF16_PAIRS void attention_bf16_block(const Attention& op, std::int64_t kv_head, Document document,
                                             std::int64_t block, std::byte* scratch) {
  const std::int64_t D = op.head_size(), G = op.group();
  const tiles::Scope scope(tiles::multiplies_bf16_tiles());
  ScratchCutter cutter(scratch);
  const ForwardTiles t(cutter, D, G);
  const std::int64_t end = std::min(block + kForwardBlock, document.end);
  const auto rows_of = [&](std::int64_t begin) { return std::min(kTile, document.end - begin); };
  std::int64_t count = 0;
  for (std::int64_t begin = block; begin < end; begin += kTile)
    for (std::int64_t g = 0; g < G; ++g) {
      QueryTile& tile = t.tiles[count++];
      tile.block = begin, tile.head = kv_head * G + g;
      pairs::transpose_words(op.q.row<bf16>(begin) + tile.head * D, op.q.stride * 2, rows_of(begin), D / 2,
                             tile.queries, kTile);
      std::fill_n(tile.highest, kTile, -std::numeric_limits<float>::infinity());
      std::fill_n(tile.sum, kTile, 0.0f);
    }
  for (std::int64_t key = first_tile(op, document, block); key < end; key += kTile) {
    const std::int64_t keys = rows_of(key);
    pairs::copy_rows(op.k.row<bf16>(key) + kv_head * D, op.k.stride, keys, D, t.keys);
    pairs::interleave_rows(op.v.row<bf16>(key) + kv_head * D, op.v.stride, keys, D, t.value_pairs, kTile / 2);
    pairs::transpose_words(t.value_pairs, D * 4, kTile / 2, D, t.values_t, kTile / 2);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t first = first_tile(op, document, t.tiles[i].block);
      if (first <= key && key <= t.tiles[i].block) attend_tile(op, t, t.tiles[i], key, keys, key == first);
    }
  }
  for (std::int64_t i = 0; i < count; ++i) finish(op, t.tiles[i], rows_of(t.tiles[i].block));
}

namespace {

THIMBLE_BF16_PAIRS float dot(const bf16* a, const bf16* b, std::int64_t count) {
  __m512 sum = _mm512_setzero_ps();
  for (std::int64_t i = 0; i < count; i += 32) {
    const auto mask = static_cast<__mmask32>(count - i >= 32 ? ~0u : (1u << (count - i)) - 1);
    sum = _mm512_dpbf16_ps(sum, (__m512bh)_mm512_maskz_loadu_epi16(mask, a + i),
                           (__m512bh)_mm512_maskz_loadu_epi16(mask, b + i));
  }
  return _mm512_reduce_add_ps(sum);
}

// Queries past the end get weight 2^-infinity = 0.
THIMBLE_BF16_PAIRS void load_queries(const Attention& op, const BackwardTiles& t, std::int64_t block,
                                     std::int64_t rows, std::int64_t head) {
  const std::int64_t D = op.head_size();
  const bf16* q = op.q.row<bf16>(block) + head * D;
  const bf16* dy = op.dy.row<bf16>(block) + head * D;
  pairs::transpose_words(q, op.q.stride * 2, rows, D / 2, t.queries_t, kTile);
  pairs::transpose_words(dy, op.dy.stride * 2, rows, D / 2, t.dy_t, kTile);
  pairs::interleave_rows(q, op.q.stride, rows, D, t.queries, kTile / 2);
  pairs::interleave_rows(dy, op.dy.stride, rows, D, t.dy, kTile / 2);
  std::fill_n(t.minus_lse, kTile, -std::numeric_limits<float>::infinity());
  std::fill_n(t.delta, kTile, 0.0f);
  for (std::int64_t r = 0; r < rows; ++r) {
    t.minus_lse[r] = -std::numbers::log2e_v<float> * op.lse.row<float>(block + r)[head];
    t.delta[r] = dot(dy + r * op.dy.stride, op.y.row<bf16>(block + r) + head * D, D);
  }
}

// Weights p = 2^(scores scale - lse) and ds = p (dp - delta) of one key and 16 queries. over_cap:
// scale / softcap; without a softcap 0, so that the slope of the cap is 1.
struct Gradients {
  __m512 p, ds;
};
THIMBLE_BF16_PAIRS inline Gradients gradients_of(const BackwardTiles& t, __m512 factor, __m512 over_cap,
                                                 std::int64_t m, std::int64_t n, __mmask16 mask) {
  const __m512 score = _mm512_loadu_ps(t.scores + m * kTile + n);
  const __m512 p = _mm512_maskz_mov_ps(
      mask, pairs::power_of_two(_mm512_fmadd_ps(score, factor, _mm512_loadu_ps(t.minus_lse + n))));
  const __m512 dp = _mm512_loadu_ps(t.dweights + m * kTile + n);
  const __m512 ds = _mm512_mul_ps(p, _mm512_sub_ps(dp, _mm512_loadu_ps(t.delta + n)));
  const __m512 share = _mm512_mul_ps(score, over_cap);
  return {p, _mm512_maskz_mul_ps(mask, ds, _mm512_fnmadd_ps(share, share, _mm512_set1_ps(1)))};
}

// Computes weights and dscores, by rows and in pairs, from scores and dweights. Two keys and 32
// queries fill whole bf16 vectors.
template <bool masked>
THIMBLE_BF16_PAIRS void scores_backward(const Attention& op, const BackwardTiles& t, const Mask& mask) {
  const __m512 factor = _mm512_set1_ps(op.at.scale * std::numbers::log2e_v<float>);
  const __m512 over_cap = _mm512_set1_ps(op.at.softcap > 0 ? op.at.scale / op.at.softcap : 0);
  cap_products(op, t.scores, mask.keys);
  for (std::int64_t m = 0; m < mask.keys; m += 2) {
    const std::uint64_t seen[2] = {masked ? mask.of(m) : ~std::uint64_t{0},
                                   masked ? mask.of(m + 1) : ~std::uint64_t{0}};
    for (std::int64_t n = 0; n < kTile; n += 2 * kLanes) {
      __m512i ds[2];
#pragma GCC unroll 2
      for (std::int64_t i = 0; i < 2; ++i) {
        const std::uint64_t lanes = seen[i] >> n;
        const Gradients left = gradients_of(t, factor, over_cap, m + i, n, static_cast<__mmask16>(lanes));
        const Gradients right =
            gradients_of(t, factor, over_cap, m + i, n + kLanes, static_cast<__mmask16>(lanes >> kLanes));
        ds[i] = (__m512i)_mm512_cvtne2ps_pbh(right.ds, left.ds);
        _mm512_storeu_si512(t.weights + (m + i) * kTile + n, (__m512i)_mm512_cvtne2ps_pbh(right.p, left.p));
        _mm512_storeu_si512(t.dscores + (m + i) * kTile + n, ds[i]);
      }
      std::uint32_t* pair = t.dscore_pairs + m / 2 * kTile + n;
      const pairs::Words words = pairs::interleave(ds[0], ds[1]);
      _mm512_storeu_si512(pair, words.low);
      _mm512_storeu_si512(pair + kLanes, words.high);
    }
  }
}

// The loaded queries and the key tile that starts `offset` rows into the window; `first`: the first
// of these queries. Each function processes a part: queries [from, from + width) with the first
// `keys` keys, or keys from `from` on with the queries from `from` on.
struct TilePass {
  const Attention& op;
  const BackwardTiles& t;
  std::int64_t offset;
  bool first;
  std::int64_t D = op.head_size();

  THIMBLE_BF16_PAIRS void scores(std::int64_t from, std::int64_t width, std::int64_t keys) const {
    tiles::fastest_product<Into::store>(keys, width, D / 2, t.keys + offset * D, D, t.queries_t + from, kTile,
                                        t.scores + from, kTile);
    tiles::fastest_product<Into::store>(keys, width, D / 2, t.values + offset * D, D, t.dy_t + from, kTile,
                                        t.dweights + from, kTile);
  }

  THIMBLE_BF16_PAIRS void keys_and_values(std::int64_t from, std::int64_t keys, std::int64_t queries) const {
    const std::int64_t tile = from * kTile + from, pair = from / 2 * D, row = (offset + from) * D;
    tiles::fastest_product<Into::add>(keys, D, queries / 2, t.weights + tile, kTile, t.dy + pair, D,
                                      t.dv + row, D);
    tiles::fastest_product<Into::add>(keys, D, queries / 2, t.dscores + tile, kTile, t.queries + pair, D,
                                      t.dk + row, D);
  }

  THIMBLE_BF16_PAIRS void queries(std::int64_t from, std::int64_t width, std::int64_t keys) const {
    if (!op.dq) return;
    const auto product = first ? tiles::fastest_product<Into::store> : tiles::fastest_product<Into::add>;
    product(D, width, (keys + 1) / 2, reinterpret_cast<const bf16*>(t.keys_t + offset / 2 * D), kTile,
            t.dscore_pairs + from, kTile, t.dq_t + from, kTile, nullptr);
  }
};

THIMBLE_BF16_PAIRS void tile_backward(const TilePass& pass, const Mask& mask) {
  pass.scores(0, kTile, kTile);
  (mask.hides_nothing() ? scores_backward<false> : scores_backward<true>)(pass.op, pass.t, mask);
  pass.keys_and_values(0, kTile, kTile);
  pass.queries(0, kTile, kTile);
}

// On the diagonal, no query in a half of the tile attends to keys after that half, and no key in a
// half is attended to by queries before it. The last tile of a document may be shorter.
THIMBLE_BF16_PAIRS void diagonal_backward(const TilePass& pass, const Mask& mask) {
  const std::int64_t rows = mask.keys, width = rows <= kHalf ? kHalf : kTile;
  for (std::int64_t from = 0; from < rows; from += kHalf)
    pass.scores(from, kHalf, std::min(rows, from + kHalf));
  scores_backward<true>(pass.op, pass.t, mask);
  for (std::int64_t from = 0; from < rows; from += kHalf) {
    pass.keys_and_values(from, std::min(rows - from, kHalf), width - from);
    pass.queries(from, kHalf, std::min(rows, from + kHalf));
  }
}

THIMBLE_BF16_PAIRS void load_keys(const Attention& op, const BackwardTiles& t, std::int64_t kv_head,
                                  std::int64_t begin, std::int64_t end) {
  const std::int64_t D = op.head_size();
  const bf16* k = op.k.row<bf16>(begin) + kv_head * D;
  pairs::copy_rows(k, op.k.stride, end - begin, D, t.keys);
  pairs::copy_rows(op.v.row<bf16>(begin) + kv_head * D, op.v.stride, end - begin, D, t.values);
  for (std::int64_t offset = 0; offset < end - begin; offset += kTile) {
    // dq_t is not yet in use and has room for the pairs.
    auto* key_pairs = reinterpret_cast<std::uint32_t*>(t.dq_t);
    pairs::interleave_rows(k + offset * op.k.stride, op.k.stride, std::min(kTile, end - begin - offset), D,
                           key_pairs, kTile / 2);
    pairs::transpose_words(key_pairs, D * 4, kTile / 2, D, t.keys_t + offset / 2 * D, kTile / 2);
  }
  std::fill_n(t.dk, (end - begin) * D, 0.0f);
  std::fill_n(t.dv, (end - begin) * D, 0.0f);
}

// Keys [begin, end) of a document under one kv head. The outer loop runs over queries; dk and dv of
// the window are accumulated.
THIMBLE_BF16_PAIRS void window_backward(const Attention& op, const BackwardTiles& t, std::int64_t kv_head,
                                        Document document, std::int64_t begin, std::int64_t end) {
  const std::int64_t D = op.head_size(), G = op.group();
  float scales[kTile];
  std::fill_n(scales, kTile, op.at.scale);
  load_keys(op, t, kv_head, begin, end);
  for (std::int64_t block = begin; block < document.end && op.first_key(block) < end; block += kTile) {
    const std::int64_t rows = std::min(kTile, document.end - block);
    const std::int64_t first = std::max(begin, first_tile(op, document, block));
    for (std::int64_t head = kv_head * G; head < (kv_head + 1) * G; ++head) {
      load_queries(op, t, block, rows, head);
      for (std::int64_t key = first; key < std::min(end, block); key += kTile)
        tile_backward({op, t, key - begin, key == first}, Mask(op, block, key, kTile));
      if (block < end)
        diagonal_backward({op, t, block - begin, block == first}, Mask(op, block, block, rows));
      // The previous keys have stored dq of these queries if the first of them attends to one.
      if (op.dq)
        pairs::put_transposed(t.dq_t, kTile, D, rows, scales, op.dq.row<bf16>(block) + head * D, op.dq.stride,
                              op.add_dq || op.first_key(block) < begin);
    }
  }
  if (op.dk)
    pairs::put_rows(t.dk, D, end - begin, op.at.scale, op.dk.row<bf16>(begin) + kv_head * D, op.dk.stride,
                    op.add_dk);
  if (op.dv)
    pairs::put_rows(t.dv, D, end - begin, 1, op.dv.row<bf16>(begin) + kv_head * D, op.dv.stride, op.add_dv);
}

}  // namespace

void attention_bf16_backward_document(const Attention& op, std::int64_t kv_head, Document document,
                                      std::byte* scratch) {
  const tiles::Scope scope(tiles::multiplies_bf16_tiles());
  ScratchCutter cutter(scratch);
  const BackwardTiles t(cutter, window_rows(op.q.rows), op.head_size());
  for (std::int64_t begin = document.begin; begin < document.end; begin += kWindow)
    window_backward(op, t, kv_head, document, begin, std::min(begin + kWindow, document.end));
}

#else

void attention_bf16_block(const Attention&, std::int64_t, Document, std::int64_t, std::byte*) {
  fail("[attention] was not built for AVX-512 BF16");
}

void attention_bf16_backward_document(const Attention&, std::int64_t, Document, std::byte*) {
  fail("[attention] was not built for AVX-512 BF16");
}

#endif

}  // namespace thimble::cpu
