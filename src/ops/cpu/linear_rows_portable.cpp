#include "ops/cpu/linear.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/linear_rows_portable.cpp"
#include <hwy/foreach_target.h>

#include "ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thimble::cpu {
namespace HWY_NAMESPACE {

HWY_INLINE void put_one(float value, float* y) {
  *y = value;
}
HWY_INLINE void put_one(float value, bf16* y) {
  *y = to_bf16(value);
}

// R rows of x against 4 rows of w: every weight is loaded once for R rows. The sum of an output
// runs in the same order for any R, so a row's bits do not depend on other rows.
template <class X, class W, int R>
HWY_INLINE void few_rows_times_four(const LinearRows& p, const W* const (&rows)[4], std::int64_t n,
                                    std::int64_t o) {
  const bool blocks = p.scales && !one_scale_per_row(p.scales);
  const auto output = [&](std::int64_t j) { return std::min(o + j, p.w.rows - 1); };
  V32 sum[R][4];
  for (auto& row : sum)
    for (V32& lane : row) lane = hn::Zero(F32());
  for_lanes(p.x.cols, [&](auto at) HWY_ATTR {
    V32 w[4];
    for (int j = 0; j < 4; ++j) {
      w[j] = at.load(rows[j]);
      if (blocks) w[j] = hn::Mul(w[j], all(p.scales.row<float>(output(j))[at.i / kScaledColumns]));
    }
    for (int r = 0; r < R; ++r) {
      const V32 x = at.load(p.x.row<X>(n + r));
      for (int j = 0; j < 4; ++j) sum[r][j] = hn::MulAdd(x, w[j], sum[r][j]);
    }
  });
  for (int r = 0; r < R; ++r)
    for (int j = 0; j < 4 && o + j < p.w.rows; ++j) {
      float y = sum_of_lanes(sum[r][j]);
      if (p.scales && !blocks) y *= *p.scales.row<float>(o + j);
      if (p.bias) y += p.bias.row<float>(0)[o + j];
      put_one(y, p.y.row<X>(n + r) + o + j);
    }
}

template <class X, class W>
HWY_INLINE void all_rows(const LinearRows& p) {
  for (std::int64_t o = 0; o < p.w.rows; o += 4) {
    const W* rows[4];
    for (std::int64_t j = 0; j < 4; ++j) rows[j] = weights_row<W>(p, std::min(o + j, p.w.rows - 1), j);
    std::int64_t n = 0;
    for (; n + 4 <= p.x.rows; n += 4) few_rows_times_four<X, W, 4>(p, rows, n, o);
    for (; n < p.x.rows; ++n) few_rows_times_four<X, W, 1>(p, rows, n, o);
  }
}

template <class X>
HWY_INLINE void by_weights(const LinearRows& p) {
  switch (p.w.dtype) {
    case DType::bf16:
      return all_rows<X, bf16>(p);
    case DType::f16:
      return all_rows<X, f16>(p);
    case DType::i8:
      return all_rows<X, std::int8_t>(p);
    default:  // f32, or blocks, which are unpacked to f32
      return all_rows<X, float>(p);
  }
}

void multiply_rows(const LinearRows& p) {
  p.x.dtype == DType::bf16 ? by_weights<bf16>(p) : by_weights<float>(p);
}

}  // namespace HWY_NAMESPACE
}  // namespace thimble::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thimble::cpu {

HWY_EXPORT(multiply_rows);

void linear_rows_portable(const LinearRows& rows) {
  HWY_DYNAMIC_DISPATCH(multiply_rows)(rows);
}

}  // namespace thimble::cpu
#endif
