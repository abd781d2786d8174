#include "ops/cpu/bf16_rows.h"

#include "base/error.h"
#include "ops/cpu/bf16_tiles.h"

namespace thimble::cpu {

#if defined(__x86_64__)

namespace {

constexpr std::int64_t kColumns = 32, kOutputs = 4;

// Lane i: the sum of v[i]'s lanes. All are added in the same order.
THIMBLE_BF16_PAIRS inline __m512 sums_of(const __m512 (&v)[16]) {
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
  const auto join = [](__m512 a, __m512 b) THIMBLE_BF16_PAIRS {
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xDD));
  };
  return join(join(four[0], four[1]), join(four[2], four[3]));
}

// R rows of x times four rows of w, of which `outputs` are there.
template <int R>
THIMBLE_BF16_PAIRS void few_rows(const Linear& op, std::int64_t n, std::int64_t o, std::int64_t outputs) {
  const bf16 *x[R], *w[kOutputs];
  for (int r = 0; r < R; ++r) x[r] = op.x.row<bf16>(n + r);
  for (std::int64_t j = 0; j < kOutputs; ++j) w[j] = op.w.row<bf16>(o + std::min(j, outputs - 1));
  __m512 sum[16] = {};
  const auto add = [&](std::int64_t k, __mmask32 mask) THIMBLE_BF16_PAIRS __attribute__((always_inline)) {
    __m512i of_w[kOutputs];
#pragma GCC unroll 4
    for (int j = 0; j < kOutputs; ++j) of_w[j] = _mm512_maskz_loadu_epi16(mask, w[j] + k);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const __m512i of_x = _mm512_maskz_loadu_epi16(mask, x[r] + k);
#pragma GCC unroll 4
      for (int j = 0; j < kOutputs; ++j)
        sum[4 * r + j] = _mm512_dpbf16_ps(sum[4 * r + j], (__m512bh)of_x, (__m512bh)of_w[j]);
    }
  };
  std::int64_t k = 0;
  for (; k + kColumns <= op.x.cols; k += kColumns) add(k, ~__mmask32{0});
  if (k < op.x.cols) add(k, (__mmask32{1} << (op.x.cols - k)) - 1);

  __m512 y = sums_of(sum);
  const auto there = static_cast<__mmask8>((1u << outputs) - 1);
  if (op.b) y = _mm512_add_ps(y, _mm512_broadcast_f32x4(_mm_maskz_loadu_ps(there, op.b.row<float>(0) + o)));
  bf16 rounded[16];
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(rounded), (__m256i)_mm512_cvtneps_pbh(y));
  for (int r = 0; r < R; ++r)
    std::memcpy(op.y.row<bf16>(n + r) + o, rounded + 4 * r, static_cast<std::size_t>(outputs) * sizeof(bf16));
}

}  // namespace

void invariant_linear_bf16(const Linear& op, std::int64_t begin, std::int64_t end) {
  constexpr std::int64_t kOutputsInCache = 16;  // rows of w that stay in L1 while all rows of x pass by
  for (std::int64_t first = begin; first < end; first += kOutputsInCache)
    for (std::int64_t n = 0; n < op.x.rows; n += 4)
      for (std::int64_t o = first; o < std::min(first + kOutputsInCache, end); o += kOutputs) {
        const std::int64_t outputs = std::min(kOutputs, end - o), rows = op.x.rows - n;
        const auto run = rows >= 4   ? few_rows<4>
                         : rows == 3 ? few_rows<3>
                         : rows == 2 ? few_rows<2>
                                     : few_rows<1>;
        run(op, n, o, outputs);
      }
}

#else

void invariant_linear_bf16(const Linear&, std::int64_t, std::int64_t) {
  fail("[linear] was not built for AVX-512 BF16");
}

#endif

}  // namespace thimble::cpu
