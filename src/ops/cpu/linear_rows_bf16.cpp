#include <array>

#include "base/error.h"
#include "ops/cpu/bf16_tiles.h"
#include "ops/cpu/linear.h"

#if defined(__x86_64__)

#define THIMBLE_ROWS __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx512vbmi")))
#include "ops/cpu/linear_rows-inl.h"

namespace thimble::cpu {

namespace {

// 64 columns: two vectors of bf16.
struct Columns {
  __m512i first, second;
};

THIMBLE_ROWS_INLINE Columns columns_at(const bf16* row, std::int64_t k, __mmask64 mask) {
  return {_mm512_maskz_loadu_epi16(static_cast<__mmask32>(mask), row + k),
          _mm512_maskz_loadu_epi16(static_cast<__mmask32>(mask >> 32), row + k + 32)};
}

// The low and high bytes of the bf16 values of 0 to 127.
struct Bf16Bytes {
  alignas(64) std::array<std::uint8_t, 128> low{}, high{};

  constexpr Bf16Bytes() {
    for (std::size_t i = 0; i < low.size(); ++i) {
      const std::uint16_t bits = to_bf16(static_cast<float>(i)).bits;
      low[i] = static_cast<std::uint8_t>(bits & 0xFF);
      high[i] = static_cast<std::uint8_t>(bits >> 8);
    }
  }
};
constexpr Bf16Bytes kBf16Bytes;

THIMBLE_ROWS_INLINE __m512i look_up(const std::array<std::uint8_t, 128>& table, __m512i index) {
  return _mm512_permutex2var_epi8(_mm512_load_si512(table.data()), index,
                                  _mm512_load_si512(table.data() + 64));
}

// A byte-wise table lookup takes half the time of converting integers to f32 and then to bf16.
THIMBLE_ROWS_INLINE Columns columns_at(const std::int8_t* row, std::int64_t k, __mmask64 mask) {
  const __m512i sign = _mm512_set1_epi8(-128), high_of_sign = _mm512_set1_epi8(static_cast<char>(0xC3));
  // Order the 8-byte groups so that interleaving within 16-byte lanes keeps the columns in order.
  const __m512i order = _mm512_set_epi64(7, 3, 6, 2, 5, 1, 4, 0);
  const __m512i q = _mm512_permutexvar_epi64(order, _mm512_maskz_loadu_epi8(mask, row + k));
  const __m512i magnitude = _mm512_abs_epi8(q);
  const __m512i low = look_up(kBf16Bytes.low, magnitude);
  __m512i high = _mm512_or_si512(look_up(kBf16Bytes.high, magnitude), _mm512_and_si512(q, sign));
  // -128 is not in the table.
  high = _mm512_mask_mov_epi8(high, _mm512_cmpeq_epi8_mask(q, sign), high_of_sign);
  return {_mm512_unpacklo_epi8(low, high), _mm512_unpackhi_epi8(low, high)};
}

// 64 columns of bf16, added 32 at a time. `blocks`: each sum of 32 is multiplied by its scale.
template <class Weight, bool blocks>
struct Pairs {
  using X = bf16;
  using W = Weight;
  using Vector = Columns;
  using Mask = __mmask64;
  static constexpr std::int64_t kColumns = 64;
  static constexpr Mask kAll = ~Mask{0};
  static constexpr bool kRowScales = !blocks;
  static_assert(kColumns == 2 * kScaledColumns);

  static Mask first(std::int64_t columns) { return (Mask{1} << columns) - 1; }
  THIMBLE_ROWS_INLINE static Vector row(const bf16* x, std::int64_t k, Mask mask) {
    return columns_at(x, k, mask);
  }
  THIMBLE_ROWS_INLINE static Vector weights(const W* w, const float*, std::int64_t k, Mask mask) {
    return columns_at(w, k, mask);
  }
  THIMBLE_ROWS_INLINE static __m512 multiply_add(Vector x, Vector w, __m512 sum, const float* scales,
                                                 std::int64_t k, Mask mask) {
    if constexpr (!blocks) {
      sum = _mm512_dpbf16_ps(sum, (__m512bh)x.first, (__m512bh)w.first);
      return _mm512_dpbf16_ps(sum, (__m512bh)x.second, (__m512bh)w.second);
    }
    sum = add_block(x.first, w.first, sum, scales[k / kScaledColumns]);
    return mask >> 32 ? add_block(x.second, w.second, sum, scales[k / kScaledColumns + 1]) : sum;
  }
  template <int R>
  THIMBLE_ROWS_INLINE static void store(const LinearRows& p, __m512 y, std::int64_t n, std::int64_t o,
                                        std::int64_t valid) {
    bf16 rounded[16];
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(rounded), (__m256i)_mm512_cvtneps_pbh(y));
    store_results<R>(p, rounded, n, o, valid);
  }

 private:
  THIMBLE_ROWS_INLINE static __m512 add_block(__m512i x, __m512i w, __m512 sum, float scale) {
    const __m512 part = _mm512_dpbf16_ps(_mm512_setzero_ps(), (__m512bh)x, (__m512bh)w);
    return _mm512_fmadd_ps(part, _mm512_set1_ps(scale), sum);
  }
};

}  // namespace

bool supports_linear_rows_bf16() {
  return multiplies_bf16_pairs() && cpu_features().avx512vbmi;
}

void linear_rows_bf16(const LinearRows& rows) {
  const bool blocks = rows.scales && !one_scale_per_row(rows.scales);
  if (rows.w.dtype == DType::i8)
    return blocks ? all_rows<Pairs<std::int8_t, true>>(rows) : all_rows<Pairs<std::int8_t, false>>(rows);
  blocks ? all_rows<Pairs<bf16, true>>(rows) : all_rows<Pairs<bf16, false>>(rows);
}

}  // namespace thimble::cpu

#else

namespace thimble::cpu {

bool supports_linear_rows_bf16() {
  return false;
}

void linear_rows_bf16(const LinearRows&) {
  fail("[linear] was not built for AVX-512 BF16");
}

}  // namespace thimble::cpu

#endif
