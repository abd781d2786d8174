// Products of small bf16 matrices in cache with AVX-512 BF16, for bf16 attention.
//
// vdpbf16ps adds two products to each lane: left (k, k + 1) times right (k, k + 1). The left factor
// is row-major, read two adjacent values at a time. The right factor is in pairs: [depth / 2,
// width], where each 32-bit word has the values of two consecutive rows. Two operations produce
// every form of a row-major matrix X that is needed:
//
//   interleave_rows  X [k, n] -> X in pairs          transpose_words  X [n, k] -> X^T in pairs
//   both in sequence                                                  X [k, n] -> X^T, row-major
//
// Compiled for AVX-512 BF16: call these functions only if multiplies_bf16_pairs() is true.
#pragma once

#include <cstdint>

#include "base/machine.h"
#include "tensor/tensor.h"

namespace thimble::cpu {

inline bool multiplies_bf16_pairs() {
  const CpuFeatures features = cpu_features();
  return features.avx512_bf16 && features.avx512bw && features.avx512dq && features.avx512vl;
}

}  // namespace thimble::cpu

#if defined(__x86_64__)
// GCC 12 warns about the intentionally undefined operands of its own intrinsics (GCC bug 105593).
#pragma GCC diagnostic push
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop

#include <algorithm>
#include <cstring>

#define THIMBLE_BF16_PAIRS __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")))

namespace thimble::cpu::pairs {

inline constexpr std::int64_t kLanes = 16;

THIMBLE_BF16_PAIRS inline __m512i broadcast_pair(const bf16* at) {
  std::int32_t word;
  std::memcpy(&word, at, sizeof(word));
  return _mm512_set1_epi32(word);
}

// How a product is combined with the previous contents of the result.
enum class Into { store, add, rescale_and_add };

// R rows of c, W vectors wide. Unrolled explicitly: at -O2 GCC would keep the sums in memory. keep
// [width]: factors of the columns of c, applied before adding.
template <int R, int W, Into into>
THIMBLE_BF16_PAIRS inline void product_strip(const bf16* a, std::int64_t a_row, const std::uint32_t* b,
                                             std::int64_t b_row, std::int64_t depth_pairs, float* c,
                                             std::int64_t c_row, const float* keep) {
  __m512 sum[R][W];
#pragma GCC unroll 8
  for (int w = 0; w < W; ++w) {
    const __m512 factor = into == Into::rescale_and_add ? _mm512_loadu_ps(keep + w * kLanes) : __m512{};
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      if (into == Into::store) {
        sum[r][w] = _mm512_setzero_ps();
        continue;
      }
      sum[r][w] = _mm512_loadu_ps(c + r * c_row + w * kLanes);
      if (into == Into::rescale_and_add) sum[r][w] = _mm512_mul_ps(sum[r][w], factor);
    }
  }
  for (std::int64_t k = 0; k < depth_pairs; ++k) {
    __m512i right[W];
#pragma GCC unroll 8
    for (int w = 0; w < W; ++w) right[w] = _mm512_loadu_si512(b + k * b_row + w * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const __m512i left = broadcast_pair(a + r * a_row + 2 * k);
#pragma GCC unroll 8
      for (int w = 0; w < W; ++w) sum[r][w] = _mm512_dpbf16_ps(sum[r][w], (__m512bh)left, (__m512bh)right[w]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int w = 0; w < W; ++w) _mm512_storeu_ps(c + r * c_row + w * kLanes, sum[r][w]);
}

template <int W, Into into>
THIMBLE_BF16_PAIRS inline void product_panel(std::int64_t rows, const bf16* a, std::int64_t a_row,
                                             const std::uint32_t* b, std::int64_t b_row,
                                             std::int64_t depth_pairs, float* c, std::int64_t c_row,
                                             const float* keep) {
  // 6 x 4 sums, 4 right vectors and 1 left use 29 of 32 registers; 24 sums hide a latency of 6.
  std::int64_t m = 0;
  for (; m + 6 <= rows; m += 6)
    product_strip<6, W, into>(a + m * a_row, a_row, b, b_row, depth_pairs, c + m * c_row, c_row, keep);
  for (; m + 4 <= rows; m += 4)
    product_strip<4, W, into>(a + m * a_row, a_row, b, b_row, depth_pairs, c + m * c_row, c_row, keep);
  for (; m + 2 <= rows; m += 2)
    product_strip<2, W, into>(a + m * a_row, a_row, b, b_row, depth_pairs, c + m * c_row, c_row, keep);
  for (; m < rows; ++m)
    product_strip<1, W, into>(a + m * a_row, a_row, b, b_row, depth_pairs, c + m * c_row, c_row, keep);
}

// c [rows, width] = a [rows, depth] b, or c += a b. width is a multiple of kLanes.
template <Into into>
THIMBLE_BF16_PAIRS inline void product(std::int64_t rows, std::int64_t width, std::int64_t depth_pairs,
                                       const bf16* a, std::int64_t a_row, const std::uint32_t* b,
                                       std::int64_t b_row, float* c, std::int64_t c_row,
                                       const float* keep = nullptr) {
  std::int64_t n = 0;
  for (; n + 4 * kLanes <= width; n += 4 * kLanes)
    product_panel<4, into>(rows, a, a_row, b + n, b_row, depth_pairs, c + n, c_row, keep ? keep + n : keep);
  for (; n + 2 * kLanes <= width; n += 2 * kLanes)
    product_panel<2, into>(rows, a, a_row, b + n, b_row, depth_pairs, c + n, c_row, keep ? keep + n : keep);
  for (; n < width; n += kLanes)
    product_panel<1, into>(rows, a, a_row, b + n, b_row, depth_pairs, c + n, c_row, keep ? keep + n : keep);
}

// 32 columns of two rows, as words of (even, odd).
struct Words {
  __m512i low, high;
};
THIMBLE_BF16_PAIRS inline Words interleave(__m512i even, __m512i odd) {
  const __m512i low = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7,
                                       38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
  const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
  return {_mm512_permutex2var_epi16(even, low, odd), _mm512_permutex2var_epi16(even, high, odd)};
}

// out [out_pairs, cols]: each word has rows 2 i and 2 i + 1 of `in`; missing rows are zeros. cols
// is a multiple of kLanes (16).
THIMBLE_BF16_PAIRS inline void interleave_rows(const bf16* in, std::int64_t in_row, std::int64_t rows,
                                               std::int64_t cols, std::uint32_t* out,
                                               std::int64_t out_pairs) {
  for (std::int64_t i = 0; i < out_pairs; ++i)
    for (std::int64_t c = 0; c < cols; c += 2 * kLanes) {
      const bool whole = c + 2 * kLanes <= cols;
      const __mmask32 mask = whole ? ~__mmask32{0} : 0xFFFF;
      const __m512i even = _mm512_maskz_loadu_epi16(2 * i < rows ? mask : 0, in + 2 * i * in_row + c);
      const __m512i odd =
          _mm512_maskz_loadu_epi16(2 * i + 1 < rows ? mask : 0, in + (2 * i + 1) * in_row + c);
      const Words words = interleave(even, odd);
      _mm512_storeu_si512(out + i * cols + c, words.low);
      if (whole) _mm512_storeu_si512(out + i * cols + c + kLanes, words.high);
    }
}

// Transposes a 16 x 16 square of words, one vector per row.
THIMBLE_BF16_PAIRS inline void transpose_square(__m512i (&v)[16]) {
  __m512i t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4)
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j) {
      v[i + 2 * j] = _mm512_unpacklo_epi64(t[i + j], t[i + j + 2]);
      v[i + 2 * j + 1] = _mm512_unpackhi_epi64(t[i + j], t[i + j + 2]);
    }
    // v[4 i + j]: column 4 l + j of rows 4 i ... 4 i + 3, in lane l of four
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const __m512i low01 = _mm512_shuffle_i32x4(v[j], v[4 + j], 0x88);
    const __m512i high01 = _mm512_shuffle_i32x4(v[j], v[4 + j], 0xDD);
    const __m512i low23 = _mm512_shuffle_i32x4(v[8 + j], v[12 + j], 0x88);
    const __m512i high23 = _mm512_shuffle_i32x4(v[8 + j], v[12 + j], 0xDD);
    t[j] = _mm512_shuffle_i32x4(low01, low23, 0x88);
    t[4 + j] = _mm512_shuffle_i32x4(high01, high23, 0x88);
    t[8 + j] = _mm512_shuffle_i32x4(low01, low23, 0xDD);
    t[12 + j] = _mm512_shuffle_i32x4(high01, high23, 0xDD);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) v[i] = t[i];
}

// out [words, out_cols]: out[c][r] = word c of row r; columns from `rows` on are zeros. in_row is
// the row stride in bytes. out_cols is a multiple of kLanes.
THIMBLE_BF16_PAIRS inline void transpose_words(const void* in, std::int64_t in_row, std::int64_t rows,
                                               std::int64_t words, std::uint32_t* out,
                                               std::int64_t out_cols) {
  const auto* bytes = static_cast<const std::byte*>(in);
  for (std::int64_t r = 0; r < out_cols; r += kLanes)
    for (std::int64_t c = 0; c < words; c += kLanes) {
      const std::int64_t count = std::min(kLanes, words - c);
      const auto mask = static_cast<__mmask16>((1u << count) - 1);
      __m512i v[16];
#pragma GCC unroll 16
      for (std::int64_t i = 0; i < kLanes; ++i)
        v[i] = r + i < rows ? _mm512_maskz_loadu_epi32(mask, bytes + (r + i) * in_row + c * 4)
                            : _mm512_setzero_si512();
      transpose_square(v);
      for (std::int64_t i = 0; i < count; ++i) _mm512_storeu_si512(out + (c + i) * out_cols + r, v[i]);
    }
}

// Transposes a [width, kTile] f32 tile with row stride `pitch`, multiplies it by `factor`, and
// stores it in or adds it to bf16 rows.
THIMBLE_BF16_PAIRS inline void put_transposed(const float* tile, std::int64_t pitch, std::int64_t width,
                                              std::int64_t rows, const float* factor, bf16* out,
                                              std::int64_t out_row, bool add) {
  for (std::int64_t r = 0; r < rows; r += kLanes) {
    const __m512 factors = _mm512_loadu_ps(factor + r);
    const std::int64_t count = std::min(kLanes, rows - r);
    for (std::int64_t d = 0; d < width; d += kLanes) {
      __m512i v[16];
#pragma GCC unroll 16
      for (std::int64_t i = 0; i < kLanes; ++i)
        v[i] = _mm512_castps_si512(_mm512_mul_ps(_mm512_loadu_ps(tile + (d + i) * pitch + r), factors));
      transpose_square(v);
      for (std::int64_t i = 0; i < count; ++i) {
        auto* place = reinterpret_cast<__m256i*>(out + (r + i) * out_row + d);
        __m512 value = _mm512_castsi512_ps(v[i]);
        if (add) {
          const __m512i old = _mm512_cvtepu16_epi32(_mm256_loadu_si256(place));
          value = _mm512_add_ps(value, _mm512_castsi512_ps(_mm512_slli_epi32(old, 16)));
        }
        _mm256_storeu_si256(place, (__m256i)_mm512_cvtneps_pbh(value));
      }
    }
  }
}

// Multiplies f32 rows by `factor` and stores them in or adds them to bf16 rows.
THIMBLE_BF16_PAIRS inline void put_rows(const float* tile, std::int64_t width, std::int64_t rows,
                                        float factor, bf16* out, std::int64_t out_row, bool add) {
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t d = 0; d < width; d += kLanes) {
      auto* place = reinterpret_cast<__m256i*>(out + r * out_row + d);
      __m512 value = _mm512_mul_ps(_mm512_loadu_ps(tile + r * width + d), _mm512_set1_ps(factor));
      if (add) {
        const __m512i old = _mm512_cvtepu16_epi32(_mm256_loadu_si256(place));
        value = _mm512_add_ps(value, _mm512_castsi512_ps(_mm512_slli_epi32(old, 16)));
      }
      _mm256_storeu_si256(place, (__m256i)_mm512_cvtneps_pbh(value));
    }
}

THIMBLE_BF16_PAIRS inline void copy_rows(const bf16* in, std::int64_t in_row, std::int64_t rows,
                                         std::int64_t cols, bf16* out) {
  for (std::int64_t r = 0; r < rows; ++r)
    std::memcpy(out + r * cols, in + r * in_row, static_cast<std::size_t>(cols) * sizeof(bf16));
}

// 2^x with a relative error of 3e-6, three orders below the precision of bf16 (4e-3). 2^-infinity
// is 0; NaN propagates.
THIMBLE_BF16_PAIRS inline __m512 power_of_two(__m512 x) {
  const __m512 part = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF);  // x - floor(x); infinity: 0
  __m512 p = _mm512_set1_ps(0.0135341678f);
  p = _mm512_fmadd_ps(p, part, _mm512_set1_ps(0.0520114601f));
  p = _mm512_fmadd_ps(p, part, _mm512_set1_ps(0.241442755f));
  p = _mm512_fmadd_ps(p, part, _mm512_set1_ps(0.693003833f));
  p = _mm512_fmadd_ps(p, part, _mm512_set1_ps(1.00000262f));
  return _mm512_scalef_ps(p, x);  // p 2^floor(x)
}

// cap tanh(x / cap), with an absolute error of 2e-6 cap. over_cap: 1 / cap.
THIMBLE_BF16_PAIRS inline __m512 capped(__m512 x, float cap, float over_cap) {
  const __m512 e = power_of_two(_mm512_mul_ps(x, _mm512_set1_ps(2 * 1.44269504f * over_cap)));
  const __m512 one = _mm512_set1_ps(1), t = _mm512_div_ps(_mm512_set1_ps(2), _mm512_add_ps(one, e));
  return _mm512_mul_ps(_mm512_set1_ps(cap), _mm512_sub_ps(one, t));
}

// Two f32 rows as one row of bf16 pairs.
THIMBLE_BF16_PAIRS inline __m512i pair_up(__m512 even, __m512 odd) {
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7,
                                         22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_permutexvar_epi16(order, (__m512i)_mm512_cvtne2ps_pbh(odd, even));
}

}  // namespace thimble::cpu::pairs
#endif
