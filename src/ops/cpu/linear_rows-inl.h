// Loops shared by linear_rows_avx512 and linear_rows_bf16: R rows times 16 / R outputs, one vector
// of sums each.
//
// Each includes this file once, after defining THIMBLE_ROWS (the target of its functions). `Math`
// defines a vector of columns and how it is multiplied.
#include <algorithm>
#include <cstddef>
#include <cstring>

#include "ops/cpu/linear.h"

// Inlining is forced: with so many kernels GCC stops inlining, and a call per vector halves the
// speed.
#define THIMBLE_ROWS_INLINE THIMBLE_ROWS inline __attribute__((always_inline))

namespace thimble::cpu {
namespace {

// Lane i is the sum of the lanes of v[i]. All are added in the same order.
THIMBLE_ROWS_INLINE __m512 sums_of(const __m512 (&v)[16]) {
  __m512 two[8], four[4];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i)
    two[i] =
        _mm512_add_ps(_mm512_unpacklo_ps(v[2 * i], v[2 * i + 1]), _mm512_unpackhi_ps(v[2 * i], v[2 * i + 1]));
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512d a = _mm512_castps_pd(two[2 * i]), b = _mm512_castps_pd(two[2 * i + 1]);
    four[i] =
        _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
  }
  // four[i]: each quarter has a part of the sums 4 i ... 4 i + 3
  const __m512 left = _mm512_add_ps(_mm512_shuffle_f32x4(four[0], four[1], 0x88),
                                    _mm512_shuffle_f32x4(four[0], four[1], 0xDD));
  const __m512 right = _mm512_add_ps(_mm512_shuffle_f32x4(four[2], four[3], 0x88),
                                     _mm512_shuffle_f32x4(four[2], four[3], 0xDD));
  return _mm512_add_ps(_mm512_shuffle_f32x4(left, right, 0x88), _mm512_shuffle_f32x4(left, right, 0xDD));
}

// J rows of w. Past the end the last row is repeated, and those results are not stored.
template <class W, int J>
struct Outputs {
  const W* w[J];
  const float* scales[J];

  Outputs(const LinearRows& p, std::int64_t o) {
    for (std::int64_t j = 0; j < J; ++j) {
      const std::int64_t row = std::min(o + j, p.w.rows - 1);
      w[j] = weights_row<W>(p, row, j);
      scales[j] = p.scales ? p.scales.row<float>(row) : nullptr;
    }
  }
};

// Prefetches the memory `ahead` bytes after w, into L2 because it is used much later.
template <class Math>
THIMBLE_ROWS_INLINE void prefetch(const typename Math::W* w, std::int64_t ahead) {
  constexpr std::int64_t kBytes = Math::kColumns * static_cast<std::int64_t>(sizeof(typename Math::W));
  const auto* at = reinterpret_cast<const char*>(w) + ahead;
#pragma GCC unroll 2
  for (std::int64_t line = 0; line < kBytes; line += 64) _mm_prefetch(at + line, _MM_HINT_T1);
}

// Adds columns from k on (masked) to the sums of R rows and J outputs; sum is [R][stride].
template <class Math, int R, int J, bool fetch>
THIMBLE_ROWS_INLINE void add_columns(const typename Math::X* const* x, const Outputs<typename Math::W, J>& of,
                                     std::int64_t k, typename Math::Mask mask, __m512* sum, int stride,
                                     [[maybe_unused]] std::int64_t ahead) {
  typename Math::Vector w[J];
#pragma GCC unroll 4
  for (int j = 0; j < J; ++j) {
    w[j] = Math::weights(of.w[j], of.scales[j], k, mask);
    if constexpr (fetch) prefetch<Math>(of.w[j] + k, ahead);
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const typename Math::Vector row = Math::row(x[r], k, mask);
#pragma GCC unroll 4
    for (int j = 0; j < J; ++j)
      sum[r * stride + j] = Math::multiply_add(row, w[j], sum[r * stride + j], of.scales[j], k, mask);
  }
}

// A number per output (16 / R of them), repeated for each of R rows.
template <int R>
THIMBLE_ROWS_INLINE __m512 for_every_row(const float (&numbers)[16 / R]) {
  float all[16];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) std::copy_n(numbers, 16 / R, all + r * (16 / R));
  return _mm512_loadu_ps(all);
}

// Stores the first `valid` columns of the results [R, 16 / R].
template <int R, class T>
THIMBLE_ROWS_INLINE void store_results(const LinearRows& p, const T (&results)[16], std::int64_t n,
                                       std::int64_t o, std::int64_t valid) {
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
    std::memcpy(p.y.row<T>(n + r) + o, results + r * (16 / R), static_cast<std::size_t>(valid) * sizeof(T));
}

// R rows of x times 16 / R outputs from o on, J at a time.
template <class Math, int R, int J, bool fetch>
THIMBLE_ROWS void few_rows(const LinearRows& p, std::int64_t n, std::int64_t o, std::int64_t ahead) {
  constexpr int kOutputs = 16 / R;
  const typename Math::X* x[R];
  for (int r = 0; r < R; ++r) x[r] = p.x.row<typename Math::X>(n + r);
  __m512 sum[16] = {};
#pragma GCC unroll 16
  for (int group = 0; group < kOutputs; group += J) {
    const Outputs<typename Math::W, J> of(p, o + group);
    std::int64_t k = 0;
    for (; k + Math::kColumns <= p.x.cols; k += Math::kColumns)
      add_columns<Math, R, J, fetch>(x, of, k, Math::kAll, sum + group, kOutputs, ahead);
    if (k < p.x.cols)
      add_columns<Math, R, J, fetch>(x, of, k, Math::first(p.x.cols - k), sum + group, kOutputs, ahead);
  }
  __m512 y = sums_of(sum);
  const std::int64_t valid = std::min<std::int64_t>(kOutputs, p.w.rows - o);
  if (Math::kRowScales && p.scales) {
    float scales[kOutputs] = {};
    for (std::int64_t j = 0; j < valid; ++j) scales[j] = *p.scales.row<float>(o + j);
    y = _mm512_mul_ps(y, for_every_row<R>(scales));
  }
  if (p.bias) {
    float bias[kOutputs] = {};
    std::copy_n(p.bias.row<float>(0) + o, valid, bias);
    y = _mm512_add_ps(y, for_every_row<R>(bias));
  }
  if (valid == kOutputs) return Math::template store<R>(p, y, n, o, kOutputs);
  Math::template store<R>(p, y, n, o, valid);
}

// Outputs [first, end), at most 16, of 8, 4, 2 or 1 rows. Weights from memory are read by 8 rows,
// so each is converted once; weights in cache are multiplied faster by 4.
template <class Math, bool in_cache, bool fetch>
void some_rows(const LinearRows& p, std::int64_t n, std::int64_t rows, std::int64_t first, std::int64_t end,
               std::int64_t ahead) {
  constexpr int kSideBySide = in_cache ? 4 : 1;
  const auto multiply = [&]<int R>() {
    for (std::int64_t o = first; o < end; o += 16 / R) few_rows<Math, R, kSideBySide, fetch>(p, n, o, ahead);
  };
  if constexpr (!in_cache)
    if (rows == 8) return multiply.template operator()<8>();
  if (rows == 4) return multiply.template operator()<4>();
  if (rows == 2) return multiply.template operator()<2>();
  multiply.template operator()<1>();
}

// The first rows of x read each row of w to its end: a single stream, which the hardware prefetcher
// detects, plus a short software prefetch (four streams in parallel are not detected and took twice
// as long). Later rows of x find the weights in cache; the first of these prefetch the next
// outputs, so that memory is not idle while they multiply.
template <class Math>
void all_rows(const LinearRows& p) {
  if (p.x.rows == 0) return;
  constexpr std::int64_t kInCache = 16;  // rows of w that stay in L1 while all rows of x use them
  constexpr std::int64_t kAhead = 4096;
  const bool unpacks = p.w.dtype == DType::blocks;  // few rows of x; the unpacked rows are in cache
  const std::int64_t next_outputs =
      kInCache * p.w.stride * static_cast<std::int64_t>(sizeof(typename Math::W));
  const auto at_most = [&](std::int64_t n, std::int64_t most) {
    while (most > p.x.rows - n) most /= 2;
    return most;
  };
  for (std::int64_t first = 0; first < p.w.rows; first += kInCache) {
    const std::int64_t end = std::min(first + kInCache, p.w.rows);
    std::int64_t n = at_most(0, 8);
    if (unpacks) {  // four outputs side by side, because a single sum waits for its last addition
      n = at_most(0, 4);
      some_rows<Math, true, false>(p, 0, n, first, end, 0);
    } else {
      some_rows<Math, false, true>(p, 0, n, first, end, kAhead);
    }
    if (n == p.x.rows) continue;
    const std::int64_t second = at_most(n, 4);
    some_rows<Math, true, true>(p, n, second, first, end, next_outputs);
    n += second;
    for (std::int64_t rows; n < p.x.rows; n += rows) {
      rows = at_most(n, 4);
      some_rows<Math, true, false>(p, n, rows, first, end, 0);
    }
  }
}

}  // namespace
}  // namespace thimble::cpu
