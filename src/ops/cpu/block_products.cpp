// Products with blocks in integers: rounding of x, and the kernel in plain loops for processors
// without vectors that multiply bytes.
#include "ops/cpu/block_products.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "ops/cpu/row_blocks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/block_products.cpp"
#include <hwy/foreach_target.h>

#include "ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thimble::cpu {
namespace HWY_NAMESPACE {

using I32 = hn::RebindToSigned<F32>;

// 32 columns of a row: their numbers, and the scale. `sums`: of the numbers of each 16 columns.
template <class X>
HWY_INLINE float round_group(const X* x, std::int8_t* numbers, std::int32_t* sums) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(F32()));
  V32 largest = hn::Zero(F32()), not_finite = hn::Zero(F32());
  for (std::int64_t i = 0; i < 32; i += lanes) {
    const V32 value = WholeVector{i}.load(x);
    largest = hn::Max(largest, hn::Abs(value));
    not_finite = hn::MulAdd(value, hn::Zero(F32()), not_finite);  // NaN if a value is infinite or NaN
  }
  const float most = max_of_lanes(largest), wrong = sum_of_lanes(not_finite);
  // Numbers near the smallest normal one would overflow the inverse: they count as 0.
  const V32 inverse = all(most > 1e-30f && wrong == 0 ? 127 / most : 0);
  for (std::int64_t half = 0; half < 2; ++half) {
    auto sum = hn::Zero(I32());
    for (std::int64_t i = 16 * half; i < 16 * half + 16; i += lanes) {
      const auto value = hn::NearestInt(hn::Mul(WholeVector{i}.load(x), inverse));
      sum = hn::Add(sum, value);
      hn::StoreU(hn::DemoteTo(I8(), value), I8(), numbers + i);
    }
    sums[half] = hn::GetLane(hn::SumOfLanes(I32(), sum));
  }
  return most / 127 + wrong;
}

template <class X>
HWY_INLINE void round_row(const X* x, std::int64_t r, std::int64_t n, const IntegerRows& to) {
  float *const scales = to.scales(n, 32) + r, *const sums = to.sums(n, 32) + r;
  float *const fine_scales = to.scales(n, 16) + r, *const fine_sums = to.sums(n, 16) + r;
  std::int8_t* const numbers = to.numbers(n) + 4 * r;
  const std::int64_t together = to.together;
  for (std::int64_t g = 0; g < to.cols / 32; ++g) {
    std::int8_t each[32];
    std::int32_t sum[2];
    const float scale = round_group(x + 32 * g, each, sum);
    scales[g * together] = fine_scales[2 * g * together] = fine_scales[(2 * g + 1) * together] = scale;
    sums[g * together] = scale * static_cast<float>(sum[0] + sum[1]);
    for (std::int64_t half = 0; half < 2; ++half)
      fine_sums[(2 * g + half) * together] = scale * static_cast<float>(sum[half]);
    for (std::int64_t four = 0; four < 8; ++four)
      std::memcpy(numbers + (8 * g + four) * 4 * together, each + 4 * four, 4);
  }
}

void round_any_row(const Tensor& x, std::int64_t r, std::int64_t n, const IntegerRows& to) {
  x.dtype == DType::bf16 ? round_row(x.row<bf16>(n + r), r, n, to) : round_row(x.row<float>(n + r), r, n, to);
}

}  // namespace HWY_NAMESPACE
}  // namespace thimble::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thimble::cpu {

HWY_EXPORT(round_any_row);

void round_rows(const Tensor& x, std::int64_t n, const IntegerRows& to) {
  const std::int64_t rows = std::min(to.together, x.rows - n);
  // Padding, and rows after the last one.
  if (rows < to.together || to.cols < to.padded)
    std::memset(to.numbers(n), 0, index_of(to.together * to.padded * 7 / 4));
  for (std::int64_t r = 0; r < rows; ++r) HWY_DYNAMIC_DISPATCH(round_any_row)(x, r, n, to);
}

bool is_in_integers(GgufType type) {
  return type != GgufType::f32 && type != GgufType::f16 && type != GgufType::bf16;
}

bool has_integers(const BlockMatrix& matrix) {
  return std::ranges::any_of(matrix.parts, [](const BlockRows& part) { return is_in_integers(part.type); });
}

void unpack_integers(const BlockRows& rows, std::int64_t row, bool keeps_sign, const WeightRow& to) {
  const std::int64_t group = columns_per_scale(rows.type);
  const BlockSize size = block_size(rows.type);
  const std::byte* from = rows.row(row);
  for (std::int64_t col = 0; col < rows.cols; col += size.numbers, from += size.bytes)
    take_integers(rows.type, from, {to.numbers + col, to.scales + col / group, to.mins + col / group});
  if (keeps_sign && has_signed_bytes(rows.type))
    for (std::int64_t i = 0; i < rows.cols; ++i) to.numbers[i] ^= 0x80;
}

BlockProductKernel block_product_kernel() {
  if (supports_block_product_vnni()) return {block_product_vnni, 8};
  if (supports_block_product_avx2()) return {block_product_avx2, 4};
  return {block_product_portable, 1};
}

std::int64_t block_product_bytes(std::int64_t cols) {
  return 2 * 16 * WeightRow::bytes(cols);  // at most 16 lanes: their rows and a tile
}

void block_product_portable(const BlockProduct& p) {
  const std::int64_t group = columns_per_scale(p.w->type);
  const WeightRow w(p.memory, p.x->padded);
  for (std::int64_t o = 0; o < p.count; ++o) {
    unpack_integers(*p.w, p.first + o, false, w);
    for (std::int64_t n = 0; n < p.x->rows; ++n) {
      const std::int8_t* x = p.x->numbers(n);
      const float *scales = p.x->scales(n, group), *sums = p.x->sums(n, group);
      float sum = 0;
      for (std::int64_t g = 0; g < p.w->cols / group; ++g) {
        std::int32_t dot = 0;
        for (std::int64_t i = g * group; i < (g + 1) * group; ++i) dot += w.numbers[i] * x[i];
        sum += static_cast<float>(dot) * (w.scales[g] * scales[g]) - w.mins[g] * sums[g];
      }
      if (p.bias) sum += p.bias.row<float>(0)[o];
      if (p.y.dtype == DType::bf16)
        p.y.row<bf16>(n)[o] = to_bf16(sum);
      else
        p.y.row<float>(n)[o] = sum;
    }
  }
}

}  // namespace thimble::cpu
#endif
