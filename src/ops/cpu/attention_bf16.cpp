#include "ops/cpu/attention_bf16.h"

#include <cmath>
#include <limits>
#include <numbers>

#include "base/error.h"
#include "ops/cpu/amx_tiles.h"

namespace thimble::cpu {

namespace {

// A tile of queries under one head, and what it has collected so far.
struct QueryTile {
  std::int64_t block, head;
  std::uint32_t* queries;  // Q^T in pairs [D / 2, kTile]
  float* result;           // Y^T [D, kTile], to be divided by the sum
  float *highest, *sum;    // [kTile]; highest: the highest score so far, times log2(e)
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

}  // namespace

std::int64_t attention_bf16_forward_bytes(std::int64_t head_size, std::int64_t group) {
  ScratchCutter cutter;
  ForwardTiles(cutter, head_size, group);
  return cutter.bytes();
}

#if defined(__x86_64__)

namespace {

constexpr int kVectors = kTile / pairs::kLanes;

// Bit n of the mask: query n of the diagonal tile sees key m.
constexpr __mmask16 visible(std::int64_t m, int vector) {
  return static_cast<__mmask16>(~std::uint64_t{0} << m >> (vector * pairs::kLanes));
}

// Each query's running softmax meets the scores of another tile of keys: they become weights in pairs, and what
// the query collected so far is to be multiplied by keep.
template <bool diagonal>
THIMBLE_BF16_PAIRS void online_softmax(const ForwardTiles& t, const QueryTile& tile, std::int64_t keys,
                                       float scale) {
  const __m512 minus_infinity = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
  const __m512 factor = _mm512_set1_ps(scale * std::numbers::log2e_v<float>);
  __m512 top[kVectors], sum[kVectors];
#pragma GCC unroll 4
  for (int w = 0; w < kVectors; ++w) top[w] = _mm512_loadu_ps(tile.highest + w * pairs::kLanes);
  for (std::int64_t m = 0; m < keys; ++m)
#pragma GCC unroll 4
    for (int w = 0; w < kVectors; ++w) {
      __m512 score = _mm512_mul_ps(_mm512_loadu_ps(t.scores + m * kTile + w * pairs::kLanes), factor);
      if (diagonal) score = _mm512_mask_mov_ps(minus_infinity, visible(m, w), score);
      top[w] = _mm512_max_ps(top[w], score);
    }
#pragma GCC unroll 4
  for (int w = 0; w < kVectors; ++w) {
    float* highest = tile.highest + w * pairs::kLanes;
    const __m512 keep = pairs::power_of_two(_mm512_sub_ps(_mm512_loadu_ps(highest), top[w]));
    _mm512_storeu_ps(t.keep + w * pairs::kLanes, keep);
    _mm512_storeu_ps(highest, top[w]);
    sum[w] = _mm512_mul_ps(_mm512_loadu_ps(tile.sum + w * pairs::kLanes), keep);
  }
  for (std::int64_t m = 0; m < keys; m += 2)
#pragma GCC unroll 4
    for (int w = 0; w < kVectors; ++w) {
      __m512 weight[2];
#pragma GCC unroll 2
      for (int i = 0; i < 2; ++i) {
        const __m512 score = _mm512_loadu_ps(t.scores + (m + i) * kTile + w * pairs::kLanes);
        weight[i] = pairs::power_of_two(_mm512_fmsub_ps(score, factor, top[w]));
        if (diagonal) weight[i] = _mm512_maskz_mov_ps(m + i < keys ? visible(m + i, w) : 0, weight[i]);
      }
      sum[w] = _mm512_add_ps(sum[w], _mm512_add_ps(weight[0], weight[1]));
      _mm512_storeu_si512(t.weights + m / 2 * kTile + w * pairs::kLanes,
                          pairs::pair_up(weight[0], weight[1]));
    }
#pragma GCC unroll 4
  for (int w = 0; w < kVectors; ++w) _mm512_storeu_ps(tile.sum + w * pairs::kLanes, sum[w]);
}

// The tile's queries [from, from + width) against the first keys of the tile: scores, and later what they weigh.
struct Meeting {
  std::int64_t from, width, keys;
};

THIMBLE_BF16_PAIRS void score(const Attention& op, const ForwardTiles& t, const QueryTile& tile,
                              Meeting who) {
  const std::int64_t D = op.head_size();
  tiles::fastest_product<pairs::Into::store>(who.keys, who.width, D / 2, t.keys, D, tile.queries + who.from,
                                             kTile, t.scores + who.from, kTile);
}

THIMBLE_BF16_PAIRS void collect(const Attention& op, const ForwardTiles& t, const QueryTile& tile,
                                Meeting who, bool first) {
  const auto product = first ? tiles::fastest_product<pairs::Into::store>
                             : tiles::fastest_product<pairs::Into::rescale_and_add>;
  product(op.head_size(), who.width, (who.keys + 1) / 2, reinterpret_cast<const bf16*>(t.values_t), kTile,
          t.weights + who.from, kTile, tile.result + who.from, kTile, t.keep + who.from);
}

THIMBLE_BF16_PAIRS void meet_keys(const Attention& op, const ForwardTiles& t, const QueryTile& tile,
                                  std::int64_t key, std::int64_t keys, bool first) {
  if (key < tile.block) {
    score(op, t, tile, {0, kTile, keys});
    online_softmax<false>(t, tile, keys, op.at.scale);
    return collect(op, t, tile, {0, kTile, keys}, first);
  }
  // On the diagonal a half of the queries sees no key beyond its own end.
  for (std::int64_t from = 0; from < keys; from += kHalf)
    score(op, t, tile, {from, kHalf, std::min(keys, from + kHalf)});
  online_softmax<true>(t, tile, keys, op.at.scale);
  for (std::int64_t from = 0; from < keys; from += kHalf)
    collect(op, t, tile, {from, kHalf, std::min(keys, from + kHalf)}, first);
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
  for (std::int64_t key = document.begin; key < end; key += kTile) {
    const std::int64_t keys = rows_of(key);
    pairs::copy_rows(op.k.row<bf16>(key) + kv_head * D, op.k.stride, keys, D, t.keys);
    pairs::interleave_rows(op.v.row<bf16>(key) + kv_head * D, op.v.stride, keys, D, t.value_pairs, kTile / 2);
    pairs::transpose_words(t.value_pairs, D * 4, kTile / 2, D, t.values_t, kTile / 2);
    for (std::int64_t i = 0; i < count; ++i)
      if (key <= t.tiles[i].block) meet_keys(op, t, t.tiles[i], key, keys, key == document.begin);
  }
  for (std::int64_t i = 0; i < count; ++i) finish(op, t.tiles[i], rows_of(t.tiles[i].block));
}

#else

void attention_bf16_block(const Attention&, std::int64_t, Document, std::int64_t, std::byte*) {
  fail("[attention] was not built for AVX-512 BF16");
}

#endif

}  // namespace thimble::cpu
