#include <algorithm>
#include <cstring>
#include <type_traits>

#include "base/error.h"
#include "base/machine.h"
#include "ops/cpu/linear.h"

namespace thimble::cpu {

bool supports_linear_rows_avx2() {
  const CpuFeatures features = cpu_features();
  return features.avx2 && features.fma && features.f16c;
}

}  // namespace thimble::cpu

#if defined(__x86_64__)

#include <immintrin.h>

#define THIMBLE_EIGHT __attribute__((target("avx2,fma,f16c")))
#define THIMBLE_EIGHT_INLINE THIMBLE_EIGHT inline __attribute__((always_inline))

namespace thimble::cpu {

namespace eight_lanes {

namespace {

constexpr std::int64_t kLanes = 8;
constexpr std::int64_t kOutputs = 4;  // computed together
constexpr std::int64_t kRows = 3;     // maximum: 12 sums, 3 of x and a weight use all 16 registers

// Eight columns of a row as f32.
THIMBLE_EIGHT_INLINE __m256 lanes_at(const float* row) {
  return _mm256_loadu_ps(row);
}
THIMBLE_EIGHT_INLINE __m256 lanes_at(const bf16* row) {
  const __m128i words = _mm_loadu_si128(reinterpret_cast<const __m128i*>(row));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(words), 16));
}
THIMBLE_EIGHT_INLINE __m256 lanes_at(const f16* row) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(row)));
}
THIMBLE_EIGHT_INLINE __m256 lanes_at(const std::int8_t* row) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(row))));
}

// The last columns of a row, padded with 0.
template <class T>
THIMBLE_EIGHT_INLINE __m256 lanes_at(const T* row, std::int64_t columns) {
  if (columns == kLanes) return lanes_at(row);
  T padded[kLanes] = {};
  std::memcpy(padded, row, static_cast<std::size_t>(columns) * sizeof(T));
  return lanes_at(padded);
}

// Lane i is the sum of the lanes of v[i]. All are added in the same order.
THIMBLE_EIGHT_INLINE __m128 sums_of(const __m256 (&v)[kOutputs]) {
  const __m256 a = _mm256_add_ps(_mm256_unpacklo_ps(v[0], v[1]), _mm256_unpackhi_ps(v[0], v[1]));
  const __m256 b = _mm256_add_ps(_mm256_unpacklo_ps(v[2], v[3]), _mm256_unpackhi_ps(v[2], v[3]));
  const __m256 sums = _mm256_add_ps(_mm256_shuffle_ps(a, b, 0x44), _mm256_shuffle_ps(a, b, 0xEE));
  return _mm_add_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps(sums, 1));
}

// R rows of x and four of w. Past the end the last row of w is repeated and not stored.
template <class X, class W, int R>
struct Operands {
  const X* x[R];
  const W* w[kOutputs];
  const float* scales[kOutputs];

  Operands(const LinearRows& p, std::int64_t n, std::int64_t o) {
    for (int r = 0; r < R; ++r) x[r] = p.x.row<X>(n + r);
    for (std::int64_t j = 0; j < kOutputs; ++j) {
      const std::int64_t row = std::min(o + j, p.w.rows - 1);
      w[j] = weights_row<W>(p, row, j);
      scales[j] = p.scales ? p.scales.row<float>(row) : nullptr;
    }
  }
};

// Adds up to eight columns from k on. Seven loads for twelve FMAs: bound by arithmetic.
template <bool blocks, class X, class W, int R>
THIMBLE_EIGHT_INLINE void add_columns(const Operands<X, W, R>& of, std::int64_t k, std::int64_t columns,
                                      __m256 (&sum)[R][kOutputs]) {
  __m256 x[R];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) x[r] = lanes_at(of.x[r] + k, columns);
#pragma GCC unroll 4
  for (int j = 0; j < kOutputs; ++j) {
    __m256 w = lanes_at(of.w[j] + k, columns);
    if constexpr (blocks) w = _mm256_mul_ps(w, _mm256_set1_ps(of.scales[j][k / kScaledColumns]));
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) sum[r][j] = _mm256_fmadd_ps(x[r], w, sum[r][j]);
  }
}

template <class X>
THIMBLE_EIGHT_INLINE void store(__m128 y, X* to, std::int64_t count) {
  if constexpr (std::is_same_v<X, float>) {
    if (count == kOutputs) return _mm_storeu_ps(to, y);
  }
  float floats[kOutputs];
  _mm_storeu_ps(floats, y);
  for (std::int64_t j = 0; j < count; ++j) {
    if constexpr (std::is_same_v<X, float>)
      to[j] = floats[j];
    else
      to[j] = to_bf16(floats[j]);
  }
}

// R rows of x times four outputs from o on. `fetch`: prefetches weights `ahead` bytes ahead.
template <bool blocks, bool fetch, class X, class W, int R>
THIMBLE_EIGHT void few_rows(const LinearRows& p, std::int64_t n, std::int64_t o, std::int64_t ahead) {
  constexpr std::int64_t kLine = 64 / static_cast<std::int64_t>(sizeof(W));
  const Operands<X, W, R> of(p, n, o);
  __m256 sum[R][kOutputs] = {};
  std::int64_t k = 0;
  if constexpr (fetch)
    for (; k + kLine <= p.x.cols; k += kLine) {
#pragma GCC unroll 4
      for (int j = 0; j < kOutputs; ++j)
        _mm_prefetch(reinterpret_cast<const char*>(of.w[j] + k) + ahead, _MM_HINT_T0);
#pragma GCC unroll 8
      for (std::int64_t i = 0; i < kLine; i += kLanes) add_columns<blocks>(of, k + i, kLanes, sum);
    }
#pragma GCC unroll 2
  for (; k + kLanes <= p.x.cols; k += kLanes) add_columns<blocks>(of, k, kLanes, sum);
  if (k < p.x.cols) add_columns<blocks>(of, k, p.x.cols - k, sum);

  const std::int64_t valid = std::min(kOutputs, p.w.rows - o);
  float scales[kOutputs] = {}, bias[kOutputs] = {};
  const bool row_scales = !blocks && p.scales;
  if (row_scales)
    for (std::int64_t j = 0; j < valid; ++j) scales[j] = *of.scales[j];
  if (p.bias) std::copy_n(p.bias.row<float>(0) + o, valid, bias);
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
    __m128 y = sums_of(sum[r]);
    if (row_scales) y = _mm_mul_ps(y, _mm_loadu_ps(scales));
    if (p.bias) y = _mm_add_ps(y, _mm_loadu_ps(bias));
    store(y, p.y.row<X>(n + r) + o, valid);
  }
}

template <bool blocks, bool fetch, class X, class W>
void some_rows(const LinearRows& p, std::int64_t n, std::int64_t o, std::int64_t ahead) {
  const std::int64_t rows = p.x.rows - n;
  if (rows >= kRows) return few_rows<blocks, fetch, X, W, kRows>(p, n, o, ahead);
  if (rows == 2) return few_rows<blocks, fetch, X, W, 2>(p, n, o, ahead);
  few_rows<blocks, fetch, X, W, 1>(p, n, o, ahead);
}

// The first rows of x read weights from memory with software prefetch, because not every processor
// detects four streams in parallel. Later rows of x find the weights in cache.
template <bool blocks, class X, class W>
void all_rows(const LinearRows& p) {
  constexpr std::int64_t kInCache = 16;                              // rows of w that stay in L1 or L2
  const std::int64_t ahead = p.w.dtype == DType::blocks ? 0 : 6144;  // unpacked rows are in cache
  if (p.x.rows == 0) return;
  for (std::int64_t first = 0; first < p.w.rows; first += kInCache) {
    const std::int64_t end = std::min(first + kInCache, p.w.rows);
    for (std::int64_t o = first; o < end; o += kOutputs) some_rows<blocks, true, X, W>(p, 0, o, ahead);
    for (std::int64_t n = kRows; n < p.x.rows; n += kRows)
      for (std::int64_t o = first; o < end; o += kOutputs) some_rows<blocks, false, X, W>(p, n, o, 0);
  }
}

template <class X>
void multiply(const LinearRows& rows) {
  switch (rows.w.dtype) {
    case DType::bf16:
      return all_rows<false, X, bf16>(rows);
    case DType::f16:
      return all_rows<false, X, f16>(rows);
    case DType::i8:
      return rows.scales && !one_scale_per_row(rows.scales) ? all_rows<true, X, std::int8_t>(rows)
                                                            : all_rows<false, X, std::int8_t>(rows);
    default:  // f32, or blocks, which are unpacked to f32
      return all_rows<false, X, float>(rows);
  }
}

}  // namespace

}  // namespace eight_lanes

void linear_rows_avx2(const LinearRows& rows) {
  rows.x.dtype == DType::bf16 ? eight_lanes::multiply<bf16>(rows) : eight_lanes::multiply<float>(rows);
}

}  // namespace thimble::cpu

#else

namespace thimble::cpu {

void linear_rows_avx2(const LinearRows&) {
  fail("[linear] was not built for AVX2");
}

}  // namespace thimble::cpu

#endif
