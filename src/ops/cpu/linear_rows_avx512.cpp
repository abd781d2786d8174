#include "base/error.h"
#include "base/machine.h"
#include "ops/cpu/bf16_tiles.h"
#include "ops/cpu/linear.h"

namespace thimble::cpu {

bool supports_linear_rows_avx512() {
  const CpuFeatures features = cpu_features();
  return features.avx512f && features.avx512bw && features.avx512dq && features.avx512vl && features.f16c;
}

}  // namespace thimble::cpu

#if defined(__x86_64__)

#define THIMBLE_ROWS __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,f16c,fma")))
#include "ops/cpu/linear_rows-inl.h"

namespace thimble::cpu {

namespace {

THIMBLE_ROWS_INLINE __m512 lanes_at(const float* row, std::int64_t k, __mmask16 mask) {
  return _mm512_maskz_loadu_ps(mask, row + k);
}
THIMBLE_ROWS_INLINE __m512 lanes_at(const bf16* row, std::int64_t k, __mmask16 mask) {
  const __m512i words = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, row + k));
  return _mm512_castsi512_ps(_mm512_slli_epi32(words, 16));
}
THIMBLE_ROWS_INLINE __m512 lanes_at(const f16* row, std::int64_t k, __mmask16 mask) {
  return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, row + k));
}
THIMBLE_ROWS_INLINE __m512 lanes_at(const std::int8_t* row, std::int64_t k, __mmask16 mask) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(mask, row + k)));
}

// 16 columns of f32 per vector. `blocks`: each weight is multiplied by its scale, which is exact.
template <class Row, class Weight, bool blocks>
struct Lanes {
  using X = Row;
  using W = Weight;
  using Vector = __m512;
  using Mask = __mmask16;
  static constexpr std::int64_t kColumns = 16;
  static constexpr Mask kAll = 0xFFFF;
  static constexpr bool kRowScales = !blocks;
  static_assert(kScaledColumns % kColumns == 0);

  static Mask first(std::int64_t columns) { return static_cast<Mask>((1u << columns) - 1); }
  THIMBLE_ROWS_INLINE static Vector row(const X* x, std::int64_t k, Mask mask) {
    return lanes_at(x, k, mask);
  }
  THIMBLE_ROWS_INLINE static Vector weights(const W* w, const float* scales, std::int64_t k, Mask mask) {
    if constexpr (!blocks) return lanes_at(w, k, mask);
    return _mm512_mul_ps(lanes_at(w, k, mask), _mm512_set1_ps(scales[k / kScaledColumns]));
  }
  THIMBLE_ROWS_INLINE static __m512 multiply_add(Vector x, Vector w, __m512 sum, const float*, std::int64_t,
                                                 Mask) {
    return _mm512_fmadd_ps(x, w, sum);
  }
  template <int R>
  THIMBLE_ROWS_INLINE static void store(const LinearRows& p, __m512 y, std::int64_t n, std::int64_t o,
                                        std::int64_t valid) {
    float floats[16];
    _mm512_storeu_ps(floats, y);
    if constexpr (std::is_same_v<X, float>) return store_results<R>(p, floats, n, o, valid);
    bf16 rounded[16];
    for (int i = 0; i < 16; ++i) rounded[i] = to_bf16(floats[i]);
    store_results<R>(p, rounded, n, o, valid);
  }
};

template <class X>
void multiply(const LinearRows& rows) {
  switch (rows.w.dtype) {
    case DType::bf16:
      return all_rows<Lanes<X, bf16, false>>(rows);
    case DType::f16:
      return all_rows<Lanes<X, f16, false>>(rows);
    case DType::i8:
      return rows.scales && !one_scale_per_row(rows.scales) ? all_rows<Lanes<X, std::int8_t, true>>(rows)
                                                            : all_rows<Lanes<X, std::int8_t, false>>(rows);
    default:  // f32, or blocks, which are unpacked to f32
      return all_rows<Lanes<X, float, false>>(rows);
  }
}

}  // namespace

void linear_rows_avx512(const LinearRows& rows) {
  rows.x.dtype == DType::bf16 ? multiply<bf16>(rows) : multiply<float>(rows);
}

}  // namespace thimble::cpu

#else

namespace thimble::cpu {

void linear_rows_avx512(const LinearRows&) {
  fail("[linear] was not built for AVX-512");
}

}  // namespace thimble::cpu

#endif
