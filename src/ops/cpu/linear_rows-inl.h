// The loops that linear_rows_avx512 and linear_rows_bf16 share: R rows times 16 / R outputs, a vector of sums each.
//
// Included once by either, which defines THIMBLE_ROWS (the target of its functions) before. Math says what a vector of
// columns is and how it is multiplied.
#include <algorithm>
#include <cstddef>
#include <cstring>

#include "ops/cpu/linear.h"

// By force: the compiler's patience ends before the last of so many kernels, and a call for each vector halves the speed.
#define THIMBLE_ROWS_INLINE THIMBLE_ROWS inline __attribute__((always_inline))

namespace thimble::cpu {
namespace {

// Lane i: the sum of v[i]'s lanes. All are added in the same order.
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
  // four[i]: in each quarter a part of the sums 4 i ... 4 i + 3
  const __m512 left = _mm512_add_ps(_mm512_shuffle_f32x4(four[0], four[1], 0x88),
                                    _mm512_shuffle_f32x4(four[0], four[1], 0xDD));
  const __m512 right = _mm512_add_ps(_mm512_shuffle_f32x4(four[2], four[3], 0x88),
                                     _mm512_shuffle_f32x4(four[2], four[3], 0xDD));
  return _mm512_add_ps(_mm512_shuffle_f32x4(left, right, 0x88), _mm512_shuffle_f32x4(left, right, 0xDD));
}

// Some rows of w, of which some may be there twice: results of those are not stored.
template <class W, int J>
struct Outputs {
  const W* w[J];
  const float* scales[J];

  Outputs(const LinearRows& p, std::int64_t o) {
    for (std::int64_t j = 0; j < J; ++j) {
      const std::int64_t row = std::min(o + j, p.w.rows - 1);
      w[j] = p.w.row<W>(row);
      scales[j] = p.scales ? p.scales.row<float>(row) : nullptr;
    }
  }
};

// Asks for what lies `ahead` bytes behind the columns from w on: into L2, they are far from being used.
template <class Math>
THIMBLE_ROWS_INLINE void ask_for(const typename Math::W* w, std::int64_t ahead) {
  constexpr std::int64_t kBytes = Math::kColumns * static_cast<std::int64_t>(sizeof(typename Math::W));
  const auto* at = reinterpret_cast<const char*>(w) + ahead;
#pragma GCC unroll 2
  for (std::int64_t line = 0; line < kBytes; line += 64) _mm_prefetch(at + line, _MM_HINT_T1);
}

// Adds columns [k, k + columns) to the sums of R rows and J outputs; sum [R][stride].
template <class Math, int R, int J, bool fetch>
THIMBLE_ROWS_INLINE void add_columns(const typename Math::X* const* x, const Outputs<typename Math::W, J>& of,
                                     std::int64_t k, typename Math::Mask mask, __m512* sum, int stride,
                                     [[maybe_unused]] std::int64_t ahead) {
  typename Math::Vector w[J];
#pragma GCC unroll 4
  for (int j = 0; j < J; ++j) {
    w[j] = Math::weights(of.w[j], of.scales[j], k, mask);
    if constexpr (fetch) ask_for<Math>(of.w[j] + k, ahead);
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const typename Math::Vector row = Math::row(x[r], k, mask);
#pragma GCC unroll 4
    for (int j = 0; j < J; ++j)
      sum[r * stride + j] = Math::multiply_add(row, w[j], sum[r * stride + j], of.scales[j], k, mask);
  }
}

// A number for each of 16 / R outputs, once for each of R rows.
template <int R>
THIMBLE_ROWS_INLINE __m512 for_every_row(const float (&numbers)[16 / R]) {
  float all[16];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) std::copy_n(numbers, 16 / R, all + r * (16 / R));
  return _mm512_loadu_ps(all);
}

// Rows of results [R, 16 / R], of which `there` columns count.
template <int R, class T>
THIMBLE_ROWS_INLINE void store_results(const LinearRows& p, const T (&results)[16], std::int64_t n,
                                       std::int64_t o, std::int64_t there) {
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
    std::memcpy(p.y.row<T>(n + r) + o, results + r * (16 / R), static_cast<std::size_t>(there) * sizeof(T));
}

// R rows of x times 16 / R outputs from o on, J side by side.
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
  const std::int64_t there = std::min<std::int64_t>(kOutputs, p.w.rows - o);
  if (Math::kRowScales && p.scales) {
    float scales[kOutputs] = {};
    for (std::int64_t j = 0; j < there; ++j) scales[j] = *p.scales.row<float>(o + j);
    y = _mm512_mul_ps(y, for_every_row<R>(scales));
  }
  if (p.bias) {
    float bias[kOutputs] = {};
    std::copy_n(p.bias.row<float>(0) + o, there, bias);
    y = _mm512_add_ps(y, for_every_row<R>(bias));
  }
  if (there == kOutputs) return Math::template store<R>(p, y, n, o, kOutputs);
  Math::template store<R>(p, y, n, o, there);
}

// Outputs [first, end), at most 16, of eight, four, two or one rows; eight read a weight that comes from memory, where
// it is converted once, and four multiply faster one that is in the cache.
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

// The first rows of x read each row of weights to its end: one stream, which the processor sees coming, and ask a
// little ahead besides (four rows side by side it does not see: they took twice as long). The rows of x behind them find
// the weights in the cache; the first of them ask for the next outputs, so that memory does not rest while they
// multiply.
template <class Math>
void all_rows(const LinearRows& p) {
  if (p.x.rows == 0) return;
  constexpr std::int64_t kInCache = 16;  // rows of w that stay in L1 while all rows of x pass by
  constexpr std::int64_t kAhead = 4096;
  const std::int64_t next_outputs =
      kInCache * p.w.stride * static_cast<std::int64_t>(sizeof(typename Math::W));
  const auto at_most = [&](std::int64_t n, std::int64_t most) {
    while (most > p.x.rows - n) most /= 2;
    return most;
  };
  for (std::int64_t first = 0; first < p.w.rows; first += kInCache) {
    const std::int64_t end = std::min(first + kInCache, p.w.rows);
    std::int64_t n = at_most(0, 8);
    some_rows<Math, false, true>(p, 0, n, first, end, kAhead);
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
