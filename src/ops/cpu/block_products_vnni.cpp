#include "base/error.h"
#include "base/machine.h"
#include "ops/cpu/block_products.h"

#if defined(__x86_64__)

// GCC 12 warns about the undefined vectors in its own headers.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>

#include <cstring>

#define THIMBLE_ROWS __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,f16c,fma")))
#define THIMBLE_LEVEL static THIMBLE_ROWS inline __attribute__((always_inline))

namespace thimble::cpu {
namespace {

// 16 lanes. vpdpbusd multiplies unsigned bytes of w by signed bytes of x and adds four products.
struct Level {
  using Floats = __m512;
  static constexpr int kLanes = 16, kTogether = 8;
  static constexpr bool kKeepsSign = false;

  THIMBLE_LEVEL Floats zero() { return _mm512_setzero_ps(); }
  THIMBLE_LEVEL Floats at(const float* from) { return _mm512_loadu_ps(from); }
  THIMBLE_LEVEL Floats all(const float* from) { return _mm512_set1_ps(*from); }
  THIMBLE_LEVEL void put(Floats v, float* to) { _mm512_storeu_ps(to, v); }
  THIMBLE_LEVEL Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
  THIMBLE_LEVEL Floats multiply(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
  THIMBLE_LEVEL Floats multiply_add(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
  THIMBLE_LEVEL Floats subtract_product(Floats a, Floats b, Floats c) { return _mm512_fnmadd_ps(a, b, c); }

  // Of each quarter, the sums of four vectors: lane i of a quarter is that of v[i].
  THIMBLE_LEVEL __m512i sums_of_quarters(const __m512i* v) {
    const __m512i a = _mm512_add_epi32(_mm512_unpacklo_epi32(v[0], v[1]), _mm512_unpackhi_epi32(v[0], v[1]));
    const __m512i b = _mm512_add_epi32(_mm512_unpacklo_epi32(v[2], v[3]), _mm512_unpackhi_epi32(v[2], v[3]));
    return _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
  }

  // Products of 16 groups.
  template <int group, bool is_signed>
  THIMBLE_LEVEL Floats groups(const std::uint8_t* w, const std::int8_t* x) {
    static_assert(!is_signed);
    constexpr int kVectors = group / 4;
    __m512i v[kVectors];
#pragma GCC unroll 8
    for (int i = 0; i < kVectors; ++i)
      v[i] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_loadu_si512(w + 64 * i),
                                 _mm512_loadu_si512(x + 64 * i));
    if constexpr (group == 16) {
      const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
      return _mm512_cvtepi32_ps(_mm512_permutexvar_epi32(order, sums_of_quarters(v)));
    } else {
      const __m512i a = sums_of_quarters(v), b = sums_of_quarters(v + 4);
      // Groups 0 2 4 6, 1 3 5 7, 8 10 12 14, 9 11 13 15.
      const __m512i sums =
          _mm512_add_epi32(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xDD));
      const __m512i order = _mm512_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
      return _mm512_cvtepi32_ps(_mm512_permutexvar_epi32(order, sums));
    }
  }

  // Lane i is the sum of the lanes of v[i].
  THIMBLE_LEVEL Floats sums_of(const Floats (&v)[16]) {
    __m512 four[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const __m512 *u = v + 4 * i,
                   a = _mm512_add_ps(_mm512_unpacklo_ps(u[0], u[1]), _mm512_unpackhi_ps(u[0], u[1])),
                   b = _mm512_add_ps(_mm512_unpacklo_ps(u[2], u[3]), _mm512_unpackhi_ps(u[2], u[3]));
      const __m512d c = _mm512_castps_pd(a), d = _mm512_castps_pd(b);
      four[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(c, d)),
                              _mm512_castpd_ps(_mm512_unpackhi_pd(c, d)));
    }
    const __m512 left = _mm512_add_ps(_mm512_shuffle_f32x4(four[0], four[1], 0x88),
                                      _mm512_shuffle_f32x4(four[0], four[1], 0xDD));
    const __m512 right = _mm512_add_ps(_mm512_shuffle_f32x4(four[2], four[3], 0x88),
                                       _mm512_shuffle_f32x4(four[2], four[3], 0xDD));
    return _mm512_add_ps(_mm512_shuffle_f32x4(left, right, 0x88), _mm512_shuffle_f32x4(left, right, 0xDD));
  }

  // A group of 16 rows of w times R rows of x.
  template <int group, bool is_signed, int R>
  THIMBLE_LEVEL void tile_group(const std::uint8_t* w, const std::int8_t* x, Floats (&dots)[R]) {
    __m512i sum[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) sum[r] = _mm512_setzero_si512();
#pragma GCC unroll 8
    for (int i = 0; i < group / 4; ++i) {
      const __m512i four = _mm512_loadu_si512(w + 64 * i);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        std::int32_t columns;
        std::memcpy(&columns, x + (i * kTogether + r) * 4, sizeof columns);
        sum[r] = _mm512_dpbusd_epi32(sum[r], four, _mm512_set1_epi32(columns));
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) dots[r] = _mm512_cvtepi32_ps(sum[r]);
  }

  // to[i] has number i, of 32 bits, of each row.
  THIMBLE_LEVEL void transpose(const void* const (&from)[16], float (&to)[16][16]) {
    __m512i v[16], u[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) v[i] = _mm512_loadu_si512(from[i]);
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
      u[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
      u[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
    }
    // v[4 k + i]: column i of each quarter, of rows 4 k to 4 k + 3.
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
      v[i] = _mm512_unpacklo_epi64(u[i], u[i + 2]);
      v[i + 1] = _mm512_unpackhi_epi64(u[i], u[i + 2]);
      v[i + 2] = _mm512_unpacklo_epi64(u[i + 1], u[i + 3]);
      v[i + 3] = _mm512_unpackhi_epi64(u[i + 1], u[i + 3]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const __m512i a = _mm512_shuffle_i32x4(v[i], v[4 + i], 0x88),
                    b = _mm512_shuffle_i32x4(v[i], v[4 + i], 0xDD),
                    c = _mm512_shuffle_i32x4(v[8 + i], v[12 + i], 0x88),
                    d = _mm512_shuffle_i32x4(v[8 + i], v[12 + i], 0xDD);
      _mm512_store_si512(to[i], _mm512_shuffle_i32x4(a, c, 0x88));
      _mm512_store_si512(to[4 + i], _mm512_shuffle_i32x4(b, d, 0x88));
      _mm512_store_si512(to[8 + i], _mm512_shuffle_i32x4(a, c, 0xDD));
      _mm512_store_si512(to[12 + i], _mm512_shuffle_i32x4(b, d, 0xDD));
    }
  }
};

}  // namespace
}  // namespace thimble::cpu

#include "ops/cpu/block_products-inl.h"

namespace thimble::cpu {

bool supports_block_product_vnni() {
  const CpuFeatures features = cpu_features();
  return features.avx512f && features.avx512bw && features.avx512dq && features.avx512vl &&
         features.avx512_vnni;
}

void block_product_vnni(const BlockProduct& product) {
  multiply_blocks(product);
}

}  // namespace thimble::cpu

#else

namespace thimble::cpu {

bool supports_block_product_vnni() {
  return false;
}

void block_product_vnni(const BlockProduct&) {
  fail("[linear] was not built for AVX-512 VNNI");
}

}  // namespace thimble::cpu

#endif
