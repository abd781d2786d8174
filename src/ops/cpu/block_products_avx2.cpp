#include "base/error.h"
#include "base/machine.h"
#include "ops/cpu/block_products.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include <cstring>

#define THIMBLE_ROWS __attribute__((target("avx2,f16c,fma")))
#define THIMBLE_LEVEL static THIMBLE_ROWS inline __attribute__((always_inline))

namespace thimble::cpu {
namespace {

// 8 lanes. vpmaddubsw multiplies unsigned bytes by signed bytes and adds two products in 16 bits,
// which saturate: numbers of w are below 64, except signed bytes, whose sign is moved to x (then
// two products are at most 2 * 128 * 127 < 2^15).
struct Level {
  using Floats = __m256;
  static constexpr int kLanes = 8, kTogether = 4;
  static constexpr bool kKeepsSign = true;

  THIMBLE_LEVEL Floats zero() { return _mm256_setzero_ps(); }
  THIMBLE_LEVEL Floats at(const float* from) { return _mm256_loadu_ps(from); }
  THIMBLE_LEVEL Floats all(const float* from) { return _mm256_broadcast_ss(from); }
  THIMBLE_LEVEL void put(Floats v, float* to) { _mm256_storeu_ps(to, v); }
  THIMBLE_LEVEL Floats add(Floats a, Floats b) { return _mm256_add_ps(a, b); }
  THIMBLE_LEVEL Floats multiply(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
  THIMBLE_LEVEL Floats multiply_add(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
  THIMBLE_LEVEL Floats subtract_product(Floats a, Floats b, Floats c) { return _mm256_fnmadd_ps(a, b, c); }

  template <bool is_signed>
  THIMBLE_LEVEL __m256i pairs(__m256i w, __m256i x) {
    if constexpr (is_signed) return _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
    return _mm256_maddubs_epi16(w, x);
  }
  THIMBLE_LEVEL __m256i fours(__m256i pairs) { return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)); }

  // Of each half, the sums of four vectors: lane i of a half is that of v[i].
  THIMBLE_LEVEL __m256i sums_of_halves(const __m256i* v) {
    const __m256i a = _mm256_add_epi32(_mm256_unpacklo_epi32(v[0], v[1]), _mm256_unpackhi_epi32(v[0], v[1]));
    const __m256i b = _mm256_add_epi32(_mm256_unpacklo_epi32(v[2], v[3]), _mm256_unpackhi_epi32(v[2], v[3]));
    return _mm256_add_epi32(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
  }

  // Products of 8 groups.
  template <int group, bool is_signed>
  THIMBLE_LEVEL Floats groups(const std::uint8_t* w, const std::int8_t* x) {
    constexpr int kVectors = group / 4;
    __m256i v[kVectors];
#pragma GCC unroll 8
    for (int i = 0; i < kVectors; ++i)
      v[i] = fours(pairs<is_signed>(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(w) + i),
                                    _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x) + i)));
    const __m256i a = sums_of_halves(v);
    if constexpr (group == 16) {
      return _mm256_cvtepi32_ps(_mm256_permutevar8x32_epi32(a, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
    } else {
      const __m256i b = sums_of_halves(v + 4);
      return _mm256_cvtepi32_ps(
          _mm256_add_epi32(_mm256_permute2x128_si256(a, b, 0x20), _mm256_permute2x128_si256(a, b, 0x31)));
    }
  }

  // Lane i is the sum of the lanes of v[i].
  THIMBLE_LEVEL Floats sums_of(const Floats (&v)[8]) {
    __m256 four[2];
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      const __m256 *u = v + 4 * i,
                   a = _mm256_add_ps(_mm256_unpacklo_ps(u[0], u[1]), _mm256_unpackhi_ps(u[0], u[1])),
                   b = _mm256_add_ps(_mm256_unpacklo_ps(u[2], u[3]), _mm256_unpackhi_ps(u[2], u[3]));
      four[i] = _mm256_add_ps(_mm256_shuffle_ps(a, b, 0x44), _mm256_shuffle_ps(a, b, 0xEE));
    }
    return _mm256_add_ps(_mm256_permute2f128_ps(four[0], four[1], 0x20),
                         _mm256_permute2f128_ps(four[0], four[1], 0x31));
  }

  // A group of 8 rows of w times R rows of x.
  template <int group, bool is_signed, int R>
  THIMBLE_LEVEL void tile_group(const std::uint8_t* w, const std::int8_t* x, Floats (&dots)[R]) {
    // Pairs that are added before a sum of 16 bits could saturate: numbers below 64 in groups of 16
    // columns, below 32 in groups of 32.
    constexpr int kPairs = is_signed ? 1 : group == 16 ? 2 : 4;
    __m256i sum[R];
#pragma GCC unroll 8
    for (int i = 0; i < group / 4; i += kPairs) {
      __m256i some[R];
#pragma GCC unroll 4
      for (int k = 0; k < kPairs; ++k) {
        const __m256i four = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w) + i + k);
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
          std::int32_t columns;
          std::memcpy(&columns, x + ((i + k) * kTogether + r) * 4, sizeof columns);
          const __m256i two = pairs<is_signed>(four, _mm256_set1_epi32(columns));
          some[r] = k == 0 ? two : _mm256_add_epi16(some[r], two);
        }
      }
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) sum[r] = i == 0 ? fours(some[r]) : _mm256_add_epi32(sum[r], fours(some[r]));
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) dots[r] = _mm256_cvtepi32_ps(sum[r]);
  }

  // to[i] has number i, of 32 bits, of each row.
  THIMBLE_LEVEL void transpose(const void* const (&from)[8], float (&to)[8][8]) {
    __m256 v[8], u[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) v[i] = _mm256_loadu_ps(static_cast<const float*>(from[i]));
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
      u[i] = _mm256_unpacklo_ps(v[i], v[i + 1]);
      u[i + 1] = _mm256_unpackhi_ps(v[i], v[i + 1]);
    }
    // v[4 k + i]: column i of each half, of rows 4 k to 4 k + 3.
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4) {
      v[i] = _mm256_shuffle_ps(u[i], u[i + 2], 0x44);
      v[i + 1] = _mm256_shuffle_ps(u[i], u[i + 2], 0xEE);
      v[i + 2] = _mm256_shuffle_ps(u[i + 1], u[i + 3], 0x44);
      v[i + 3] = _mm256_shuffle_ps(u[i + 1], u[i + 3], 0xEE);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      _mm256_storeu_ps(to[i], _mm256_permute2f128_ps(v[i], v[4 + i], 0x20));
      _mm256_storeu_ps(to[4 + i], _mm256_permute2f128_ps(v[i], v[4 + i], 0x31));
    }
  }
};

}  // namespace
}  // namespace thimble::cpu

#include "ops/cpu/block_products-inl.h"

namespace thimble::cpu {

bool supports_block_product_avx2() {
  const CpuFeatures features = cpu_features();
  return features.avx2 && features.fma && features.f16c;
}

void block_product_avx2(const BlockProduct& product) {
  multiply_blocks(product);
}

}  // namespace thimble::cpu

#else

namespace thimble::cpu {

bool supports_block_product_avx2() {
  return false;
}

void block_product_avx2(const BlockProduct&) {
  fail("[linear] was not built for AVX2");
}

}  // namespace thimble::cpu

#endif
