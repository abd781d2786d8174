// The loops that linear_rows_in_lanes and linear_rows_in_pairs share: R rows times 16 / R outputs, a vector of sums each.
//
// Included once by either, which defines THIMBLE_ROWS (the target of its functions) before. Math says what a vector of
// columns is and how it is multiplied.
#include <algorithm>
#include <cstddef>
#include <cstring>

#include "ops/cpu/linear_rows.h"
#include "ops/stored.h"

namespace thimble::cpu {
namespace {

// Lane i: the sum of v[i]'s lanes. All are added in the same order.
THIMBLE_ROWS inline __m512 sums_of(const __m512 (&v)[16]) {
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

// Four rows of w, of which some may be there twice: results of those are not stored.
template <class W>
struct FourOutputs {
  const W* w[4];
  const float* scales[4];

  FourOutputs(const LinearRows& p, std::int64_t o) {
    for (std::int64_t j = 0; j < 4; ++j) {
      const std::int64_t row = std::min(o + j, p.w.rows - 1);
      w[j] = p.w.row<W>(row);
      scales[j] = p.scales ? p.scales.row<float>(row) : nullptr;
    }
  }
};

// Adds columns [k, k + columns) to the sums of R rows and four outputs; sum [R][stride]. `fetch`: weights are asked for
// that many bytes ahead.
template <class Math, int R, bool fetch>
THIMBLE_ROWS inline __attribute__((always_inline)) void add_columns(const typename Math::X* const* x,
                                                                    const FourOutputs<typename Math::W>& of,
                                                                    std::int64_t k, typename Math::Mask mask,
                                                                    __m512* sum, int stride,
                                                                    [[maybe_unused]] std::int64_t ahead) {
  typename Math::Vector w[4];
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    w[j] = Math::weights(of.w[j], of.scales[j], k, mask);
    if constexpr (fetch) __builtin_prefetch(reinterpret_cast<const std::byte*>(of.w[j] + k) + ahead);
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
    const typename Math::Vector row = Math::row(x[r], k, mask);
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j)
      sum[r * stride + j] = Math::multiply_add(row, w[j], sum[r * stride + j], of.scales[j], k, mask);
  }
}

// R rows of x times 16 / R outputs from o on, four at a time: w is read in few streams.
template <class Math, int R, bool fetch>
THIMBLE_ROWS void few_rows(const LinearRows& p, std::int64_t n, std::int64_t o, std::int64_t ahead) {
  constexpr int kOutputs = 16 / R;
  const typename Math::X* x[R];
  for (int r = 0; r < R; ++r) x[r] = p.x.row<typename Math::X>(n + r);
  __m512 sum[16] = {};
#pragma GCC unroll 4
  for (int group = 0; group < kOutputs; group += 4) {
    const FourOutputs<typename Math::W> of(p, o + group);
    std::int64_t k = 0;
    for (; k + Math::kColumns <= p.x.cols; k += Math::kColumns)
      add_columns<Math, R, fetch>(x, of, k, Math::kAll, sum + group, kOutputs, ahead);
    if (k < p.x.cols)
      add_columns<Math, R, fetch>(x, of, k, Math::first(p.x.cols - k), sum + group, kOutputs, ahead);
  }
  float y[16];
  _mm512_storeu_ps(y, sums_of(sum));
  const auto there = static_cast<int>(std::min<std::int64_t>(kOutputs, p.w.rows - o));
  for (int r = 0; r < R; ++r)
    for (int j = 0; j < there; ++j) {
      float& value = y[r * kOutputs + j];
      if (Math::kRowScales && p.scales) value *= *p.scales.row<float>(o + j);
      if (p.bias) value += p.bias.row<float>(0)[o + j];
    }
  Math::store(p, y, n, o, R, kOutputs, there);
}

// Four, two or one rows times outputs [first, end), at most 16.
template <class Math, bool fetch>
void some_rows(const LinearRows& p, std::int64_t n, std::int64_t rows, std::int64_t first, std::int64_t end,
               std::int64_t ahead) {
  switch (rows) {
    case 4:
      for (std::int64_t o = first; o < end; o += 4) few_rows<Math, 4, fetch>(p, n, o, ahead);
      return;
    case 2:
      for (std::int64_t o = first; o < end; o += 8) few_rows<Math, 2, fetch>(p, n, o, ahead);
      return;
    default:
      few_rows<Math, 1, fetch>(p, n, first, ahead);
  }
}

// Four rows of weights side by side are no stream that the processor would see: they are asked for. The first rows of x
// ask a little ahead (worth a third of the time in int8, a tenth in f32; from 2 KiB on the distance hardly matters), the
// second ones for the next outputs, so that memory does not rest while they multiply.
template <class Math>
void all_rows(const LinearRows& p) {
  constexpr std::int64_t kInCache = 16;  // rows of w that stay in L1 while all rows of x pass by
  constexpr std::int64_t kAhead = 4096;
  const std::int64_t next_outputs =
      kInCache * p.w.stride * static_cast<std::int64_t>(sizeof(typename Math::W));
  for (std::int64_t first = 0; first < p.w.rows; first += kInCache) {
    const std::int64_t end = std::min(first + kInCache, p.w.rows);
    for (std::int64_t n = 0, rows; n < p.x.rows; n += rows) {
      const std::int64_t left = p.x.rows - n;
      rows = left >= 4 ? 4 : left >= 2 ? 2 : 1;
      if (n <= 4)
        some_rows<Math, true>(p, n, rows, first, end, n == 0 ? kAhead : next_outputs);
      else
        some_rows<Math, false>(p, n, rows, first, end, 0);
    }
  }
}

// Rows of results [R, row] of which `there` columns count.
inline void store_floats(const LinearRows& p, const float* y, std::int64_t n, std::int64_t o, int rows,
                         int row, int there) {
  for (int r = 0; r < rows; ++r)
    std::memcpy(p.y.row<float>(n + r) + o, y + r * row, static_cast<std::size_t>(there) * sizeof(float));
}

}  // namespace
}  // namespace thimble::cpu
