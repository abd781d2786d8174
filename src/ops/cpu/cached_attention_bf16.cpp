// cached_attention in bf16 with AVX-512 BF16. A few queries of one slot, with all heads that share
// a kv head ("lines"), are processed together: each block of keys is transposed once for all of
// them (bf16_tiles.h).
//
//   S [lines, keys] = Q K^T     Y [lines, D] += P V
//
// P is rounded to bf16, as in attention_bf16.cpp. Blocks start at position 0, and the sums of a
// line depend only on its query and position, so the op is batch-invariant.
#include <algorithm>
#include <limits>
#include <numbers>

#include "base/error.h"
#include "ops/cpu/attention.h"

namespace thimble::cpu {

namespace {

constexpr std::int64_t kKeys = 64;  // keys per block
constexpr std::int64_t kLines = kLinesInPairs;
constexpr std::int64_t kReadBytes = 256 << 10;  // of keys and values that are read ahead into L2

struct RunTiles {
  bf16* queries;              // [lines, D]
  std::uint32_t* keys_t;      // K^T in pairs [D / 2, kKeys]
  std::uint32_t* values;      // V in pairs [kKeys / 2, D]
  std::uint32_t* half_pair;   // [D], an unpaired first or last row
  float* scores;              // [lines, kKeys]
  bf16* weights;              // [lines, kKeys]
  float* result;              // [lines, D], not yet divided by the sum
  float *highest, *sum;       // [lines]; highest: the maximum score so far, times log2(e)
  std::int64_t *first, *end;  // [lines] the keys that a line attends to

  RunTiles(ScratchCutter& cutter, std::int64_t D) {
    cutter.take(queries, kLines * D);
    cutter.take(keys_t, D / 2 * kKeys);
    cutter.take(values, kKeys / 2 * D);
    cutter.take(half_pair, D);
    cutter.take(scores, kLines * kKeys);
    cutter.take(weights, kLines * kKeys);
    cutter.take(result, kLines * D);
    cutter.take(highest, kLines);
    cutter.take(sum, kLines);
    cutter.take(first, kLines);
    cutter.take(end, kLines);
  }

  // The same tiles from `line` on. Scores and weights are reused for each kv head.
  RunTiles at_line(std::int64_t line, std::int64_t D) const {
    RunTiles t = *this;
    t.queries += line * D, t.result += line * D;
    t.highest += line, t.sum += line, t.first += line, t.end += line;
    return t;
  }

  // The keys of a block that a line attends to, counted from its start; begin >= end: none.
  struct Keys {
    std::int64_t begin, end;
  };
  Keys seen(std::int64_t line, std::int64_t block) const {
    return {std::max<std::int64_t>(first[line] - block, 0), std::min(end[line] - block, kKeys)};
  }
};

}  // namespace

bool cached_attention_in_bf16_pairs(const CachedAttention& op) {
  return op.q.dtype == DType::bf16 && op.head_size() % 16 == 0 && op.group() <= kLines &&
         multiplies_bf16_pairs();
}

std::vector<QueryRun> cached_attention_runs(const CachedAttention& op, std::int64_t lines,
                                            std::int64_t threads) {
  const std::int64_t queries = std::max<std::int64_t>(lines / op.group(), 1);
  const auto follows = [&](std::int64_t n) {
    return *op.slot.row<std::int32_t>(n) == *op.slot.row<std::int32_t>(n - 1) &&
           *op.position.row<std::int32_t>(n) == *op.position.row<std::int32_t>(n - 1) + 1;
  };
  std::vector<QueryRun> rows;
  for (std::int64_t n = 0; n < op.q.rows; ++n) {
    if (n == 0 || rows.back().count == queries || !follows(n)) rows.push_back({n, 0, 0, 0});
    ++rows.back().count;
  }
  // Last rows first: they have the most keys, and short tasks at the end balance the threads.
  std::ranges::reverse(rows);
  const std::int64_t kv_heads = op.at.kv_heads,
                     for_all = static_cast<std::int64_t>(rows.size()) * kv_heads / threads;
  std::vector<QueryRun> runs;
  for (QueryRun run : rows) {
    const std::int64_t together =
        std::max<std::int64_t>(std::min({for_all, kv_heads, lines / (run.count * op.group())}), 1);
    for (run.kv_begin = 0; run.kv_begin < kv_heads; run.kv_begin = run.kv_end) {
      run.kv_end = std::min(run.kv_begin + together, kv_heads);
      runs.push_back(run);
    }
  }
  return runs;
}

std::int64_t cached_attention_bf16_bytes(std::int64_t head_size) {
  ScratchCutter cutter;
  RunTiles(cutter, head_size);
  return cutter.bytes();
}

#if defined(__x86_64__)

namespace {

// Reads some blocks line by line, so that memory delivers them as one stream. When each head read
// only its own part of every row, the hardware prefetcher detected no pattern and it took twice as
// long. Software prefetches, and reading the next blocks between the products of this one, were
// equally slow.
void read_rows(const bf16* rows, std::int64_t pitch, std::int64_t count, std::int64_t width) {
  constexpr std::int64_t kLine = 64 / static_cast<std::int64_t>(sizeof(bf16));
  for (std::int64_t m = 0; m < count; ++m)
    for (std::int64_t d = 0; d < width; d += kLine) {
      const volatile std::uint16_t& line = rows[m * pitch + d].bits;
      [[maybe_unused]] const std::uint16_t first = line;
    }
}

// One step of a line's online softmax with the scores of a block, of which it attends to some:
// scores become weights, and the result so far is rescaled.
THIMBLE_BF16_PAIRS void update_softmax(const CachedAttention& op, const RunTiles& t, std::int64_t line,
                                       RunTiles::Keys keys) {
  constexpr int kVectors = kKeys / pairs::kLanes;
  const std::int64_t D = op.head_size();
  const auto before_end = keys.end >= kKeys ? ~std::uint64_t{0} : (std::uint64_t{1} << keys.end) - 1;
  const std::uint64_t seen = before_end & ~std::uint64_t{0} << keys.begin;
  float* scores = t.scores + line * kKeys;
  if (op.at.softcap > 0)
    for (std::int64_t m = 0; m < kKeys; m += pairs::kLanes)
      _mm512_storeu_ps(scores + m, pairs::capped(_mm512_loadu_ps(scores + m), op.at.softcap / op.at.scale,
                                                 op.at.scale / op.at.softcap));
  const __m512 factor = _mm512_set1_ps(op.at.scale * std::numbers::log2e_v<float>);
  const __m512 minus_infinity = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
  __m512 score[kVectors], top = _mm512_set1_ps(t.highest[line]), total = _mm512_setzero_ps();
#pragma GCC unroll 4
  for (int w = 0; w < kVectors; ++w) {
    score[w] = _mm512_mask_mul_ps(minus_infinity, static_cast<__mmask16>(seen >> (w * pairs::kLanes)),
                                  _mm512_loadu_ps(scores + w * pairs::kLanes), factor);
    top = _mm512_max_ps(top, score[w]);
  }
  top = _mm512_set1_ps(_mm512_reduce_max_ps(top));
  const __m512 keep = pairs::power_of_two(_mm512_sub_ps(_mm512_set1_ps(t.highest[line]), top));
#pragma GCC unroll 4
  for (int w = 0; w < kVectors; ++w) {
    const __m512 weight = pairs::power_of_two(_mm512_sub_ps(score[w], top));
    total = _mm512_add_ps(total, weight);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(t.weights + line * kKeys + w * pairs::kLanes),
                        (__m256i)_mm512_cvtneps_pbh(weight));
  }
  t.highest[line] = _mm512_cvtss_f32(top);
  t.sum[line] = t.sum[line] * _mm512_cvtss_f32(keep) + _mm512_reduce_add_ps(total);
  for (std::int64_t d = 0; d < D; d += pairs::kLanes) {
    float* y = t.result + line * D + d;
    _mm512_storeu_ps(y, _mm512_mul_ps(_mm512_loadu_ps(y), keep));
  }
}

// Transposes 32 columns of 16 keys: v[i] has columns (2 i, 2 i + 1). Missing keys are zeros.
THIMBLE_BF16_PAIRS inline __attribute__((always_inline)) void transpose_keys(const bf16* k,
                                                                             std::int64_t pitch,
                                                                             std::int64_t keys,
                                                                             __m512i (&v)[16]) {
  if (keys >= pairs::kLanes) {
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) v[i] = _mm512_loadu_si512(k + i * pitch);
  } else {
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) v[i] = _mm512_maskz_loadu_epi32(i < keys ? 0xFFFF : 0, k + i * pitch);
  }
  pairs::transpose_square(v);
}

// The same sums as pairs::product of a transposed block, for L lines, without storing the
// transpose. With one or two lines, storing it takes longer than multiplying. D is a multiple of
// 32.
template <int L>
THIMBLE_BF16_PAIRS void score_few(const bf16* k, std::int64_t pitch, std::int64_t keys, std::int64_t D,
                                  const bf16* queries, float* scores) {
  for (std::int64_t r = 0; r < keys; r += pairs::kLanes) {
    __m512 sum[L] = {};
    for (std::int64_t c = 0; c < D; c += 2 * pairs::kLanes) {
      __m512i v[16];
      transpose_keys(k + r * pitch + c, pitch, keys - r, v);
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i)
#pragma GCC unroll 4
        for (int l = 0; l < L; ++l)
          sum[l] = _mm512_dpbf16_ps(sum[l], (__m512bh)pairs::broadcast_pair(queries + l * D + c + 2 * i),
                                    (__m512bh)v[i]);
    }
#pragma GCC unroll 4
    for (int l = 0; l < L; ++l) _mm512_storeu_ps(scores + l * kKeys + r, sum[l]);
  }
}

// 32 columns of the results of L lines.
template <int L>
struct FewResults {
  __m512 low[L], high[L];

  // Adds two values times their weights; the weights of consecutive lines are kKeys apart.
  THIMBLE_BF16_PAIRS inline __attribute__((always_inline)) void add(__m512i even, __m512i odd,
                                                                    const bf16* weights) {
    const pairs::Words words = pairs::interleave(even, odd);
#pragma GCC unroll 4
    for (int l = 0; l < L; ++l) {
      const auto weight = (__m512bh)pairs::broadcast_pair(weights + l * kKeys);
      low[l] = _mm512_dpbf16_ps(low[l], weight, (__m512bh)words.low);
      high[l] = _mm512_dpbf16_ps(high[l], weight, (__m512bh)words.high);
    }
  }
};

template <int L>
THIMBLE_BF16_PAIRS void accumulate_few(const bf16* v, std::int64_t pitch, RunTiles::Keys keys, std::int64_t D,
                                       const bf16* weights, float* result) {
  for (std::int64_t c = 0; c < D; c += 2 * pairs::kLanes) {
    FewResults<L> y;
#pragma GCC unroll 4
    for (int l = 0; l < L; ++l) {
      y.low[l] = _mm512_loadu_ps(result + l * D + c);
      y.high[l] = _mm512_loadu_ps(result + l * D + c + pairs::kLanes);
    }
    // Pairs start at even keys, so sums do not depend on the run.
    std::int64_t m = keys.begin;
    if (m % 2 == 1)
      y.add(_mm512_setzero_si512(), _mm512_loadu_si512(v + m * pitch + c), weights + m - 1), ++m;
    for (; m + 2 <= keys.end; m += 2)
      y.add(_mm512_loadu_si512(v + m * pitch + c), _mm512_loadu_si512(v + (m + 1) * pitch + c), weights + m);
    if (m < keys.end) y.add(_mm512_loadu_si512(v + m * pitch + c), _mm512_setzero_si512(), weights + m);
#pragma GCC unroll 4
    for (int l = 0; l < L; ++l) {
      _mm512_storeu_ps(result + l * D + c, y.low[l]);
      _mm512_storeu_ps(result + l * D + c + pairs::kLanes, y.high[l]);
    }
  }
}

// One block of keys and values of one kv head.
struct KeyBlock {
  const bf16 *k, *v;
  std::int64_t k_pitch, v_pitch, begin, keys;
};

THIMBLE_BF16_PAIRS void compute_weights(const CachedAttention& op, const RunTiles& t, std::int64_t lines,
                                        std::int64_t begin) {
  for (std::int64_t line = 0; line < lines; ++line) {
    const RunTiles::Keys seen = t.seen(line, begin);
    if (seen.begin < seen.end)
      update_softmax(op, t, line, seen);
    else
      std::fill_n(t.weights + line * kKeys, kKeys, bf16{});
  }
}

template <int L>
THIMBLE_BF16_PAIRS void attend_block_few(const CachedAttention& op, const RunTiles& t, const KeyBlock& of) {
  const std::int64_t D = op.head_size();
  score_few<L>(of.k, of.k_pitch, of.keys, D, t.queries, t.scores);
  compute_weights(op, t, L, of.begin);
  accumulate_few<L>(of.v, of.v_pitch, t.seen(0, of.begin), D, t.weights, t.result);
}

// Excludes values that a query does not attend to, because 0 times NaN is NaN. Its first and its
// last key may be halves of pairs.
THIMBLE_BF16_PAIRS void accumulate_visible(const CachedAttention& op, const RunTiles& t, std::int64_t lines,
                                           std::int64_t begin) {
  const std::int64_t D = op.head_size(), G = op.group();
  for (std::int64_t line = 0; line < lines; line += G) {
    const RunTiles::Keys seen = t.seen(line, begin);
    if (seen.begin >= seen.end) continue;
    const bf16* weights = t.weights + line * kKeys;
    float* result = t.result + line * D;
    const auto add_half = [&](std::int64_t pair, std::uint32_t half) {
      for (std::int64_t d = 0; d < D; ++d) t.half_pair[d] = t.values[pair * D + d] & half;
      pairs::product<pairs::Into::add>(G, D, 1, weights + 2 * pair, kKeys, t.half_pair, D, result, D);
    };
    if (seen.begin % 2 == 1) add_half(seen.begin / 2, 0xFFFF0000);
    const std::int64_t pair = (seen.begin + 1) / 2, end = seen.end / 2;
    if (pair < end)
      pairs::product<pairs::Into::add>(G, D, end - pair, weights + 2 * pair, kKeys, t.values + pair * D, D,
                                       result, D);
    if (seen.end % 2 == 1) add_half(end, 0xFFFF);
  }
}

THIMBLE_BF16_PAIRS void attend_block_many(const CachedAttention& op, const RunTiles& t, std::int64_t lines,
                                          const KeyBlock& of) {
  const std::int64_t D = op.head_size(), pairs_of_keys = (of.keys + 1) / 2;
  pairs::transpose_words(of.k, of.k_pitch * 2, of.keys, D / 2, t.keys_t, kKeys);
  pairs::interleave_rows(of.v, of.v_pitch, of.keys, D, t.values, pairs_of_keys);
  pairs::product<pairs::Into::store>(lines, kKeys, D / 2, t.queries, D, t.keys_t, kKeys, t.scores, kKeys);
  compute_weights(op, t, lines, of.begin);
  if (t.end[0] < of.begin + of.keys || t.first[lines - 1] > of.begin)
    return accumulate_visible(op, t, lines, of.begin);
  pairs::product<pairs::Into::add>(lines, D, pairs_of_keys, t.weights, kKeys, t.values, D, t.result, D);
}

void attend_block(const CachedAttention& op, const RunTiles& t, std::int64_t lines, const KeyBlock& of) {
  const bool few = t.end[0] == t.end[lines - 1] && op.head_size() % (2 * pairs::kLanes) == 0;
  switch (few ? lines : 0) {
    case 1:
      return attend_block_few<1>(op, t, of);
    case 2:
      return attend_block_few<2>(op, t, of);
    case 3:
      return attend_block_few<3>(op, t, of);
    case 4:
      return attend_block_few<4>(op, t, of);
    default:
      return attend_block_many(op, t, lines, of);
  }
}

// Line order: by kv head, then query, then the heads of the group.
void start_lines(const CachedAttention& op, const QueryRun& run, const RunTiles& t) {
  const std::int64_t D = op.head_size(), G = op.group();
  std::int64_t line = 0;
  for (std::int64_t kv = run.kv_begin; kv < run.kv_end; ++kv)
    for (std::int64_t n = run.begin; n < run.begin + run.count; ++n, line += G) {
      const std::int64_t end = *op.position.row<std::int32_t>(n) + std::int64_t{1};
      std::copy_n(op.q.row<bf16>(n) + kv * G * D, G * D, t.queries + line * D);
      std::fill_n(t.first + line, G, op.at.window > 0 ? std::max<std::int64_t>(end - op.at.window, 0) : 0);
      std::fill_n(t.end + line, G, end);
    }
  std::fill_n(t.highest, line, -std::numeric_limits<float>::infinity());
  std::fill_n(t.sum, line, 0.0f);
  std::fill_n(t.result, line * D, 0.0f);
}

THIMBLE_BF16_PAIRS void finish_lines(const CachedAttention& op, const QueryRun& run, const RunTiles& t) {
  const std::int64_t D = op.head_size(), G = op.group();
  std::int64_t line = 0;
  for (std::int64_t kv = run.kv_begin; kv < run.kv_end; ++kv)
    for (std::int64_t n = run.begin; n < run.begin + run.count; ++n)
      for (std::int64_t h = kv * G; h < (kv + 1) * G; ++h, ++line)
        for (std::int64_t d = 0; d < D; d += pairs::kLanes) {
          const __m512 y =
              _mm512_div_ps(_mm512_loadu_ps(t.result + line * D + d), _mm512_set1_ps(t.sum[line]));
          _mm256_storeu_si256(reinterpret_cast<__m256i*>(op.y.row<bf16>(n) + h * D + d),
                              (__m256i)_mm512_cvtneps_pbh(y));
        }
}

}  // namespace

void cached_attention_bf16_run(const CachedAttention& op, const QueryRun& run, std::byte* scratch) {
  const std::int64_t D = op.head_size(), heads = run.kv_end - run.kv_begin, lines = run.count * op.group();
  ScratchCutter cutter(scratch);
  const RunTiles t(cutter, D);
  start_lines(op, run, t);
  const std::int64_t first = *op.slot.row<std::int32_t>(run.begin) * std::int64_t{op.at.context},
                     start = t.first[0] / kKeys * kKeys, end = t.end[lines - 1];
  const std::int64_t k_pitch = op.k_cache.stride, v_pitch = op.v_cache.stride;
  const bf16 *k = op.k_cache.row<bf16>(first) + run.kv_begin * D,
             *v = op.v_cache.row<bf16>(first) + run.kv_begin * D;
  const std::int64_t read_together = kKeys * std::max<std::int64_t>(1, kReadBytes / (4 * kKeys * heads * D));
  for (std::int64_t begin = start; begin < end; begin += kKeys) {
    const std::int64_t keys = std::min(kKeys, end - begin), row = begin % op.at.context;
    if ((begin - start) % read_together == 0) {
      const std::int64_t rows = std::min({read_together, end - begin, op.at.context - row});
      read_rows(k + row * k_pitch, k_pitch, rows, heads * D);
      read_rows(v + row * v_pitch, v_pitch, rows, heads * D);
    }
    for (std::int64_t kv = 0; kv < heads; ++kv)
      attend_block(op, t.at_line(kv * lines, D), lines,
                   {k + row * k_pitch + kv * D, v + row * v_pitch + kv * D, k_pitch, v_pitch, begin, keys});
  }
  finish_lines(op, run, t);
}

#else

void cached_attention_bf16_run(const CachedAttention&, const QueryRun&, std::byte*) {
  fail("[cached_attention] was not built for AVX-512 BF16");
}

#endif

}  // namespace thimble::cpu
