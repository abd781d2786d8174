#include "ops/cpu/linear.h"

#if defined(__wasm_simd128__)

#include <wasm_simd128.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

namespace thimble::cpu {

bool supports_linear_rows_wasm() {
  return true;
}

namespace {

// WebAssembly has no fused multiply-add, and converting 8-bit weights to f32 costs more than the
// product. It has a product of pairs of i16 that adds to i32. A row of x is therefore split into
// two i16 digits: x = step * (high + low / kLow). Splitting rounds like one f32 product, and the
// sums of integers are exact.
constexpr float kHigh = 32767, kLow = 65534;
constexpr std::int64_t kLanes = 16;           // weights loaded at once
constexpr std::int64_t kExactColumns = 2048;  // sums of that many products fit in i32
constexpr int kOutputs = 4;
constexpr float kSmallestStep = 1e-37f;  // its reciprocal is finite

struct SplitRow {
  std::vector<std::int16_t> high, low;  // padded with 0 to whole loads
  float step = 0;

  void split(const float* x, std::int64_t columns) {
    const auto padded = static_cast<std::size_t>((columns + kLanes - 1) / kLanes * kLanes);
    high.resize(padded), low.resize(padded);
    float largest = 0, zero = 0;
    for (std::int64_t j = 0; j < columns; ++j) {
      largest = std::max(largest, std::fabs(x[j]));
      zero += x[j] * 0;  // NaN if an x is not finite; then every output is, as in the other kernels
    }
    step = largest / kHigh + zero;
    const float scale = step > kSmallestStep ? 1 / step : 0;
    std::int64_t i = 0;
    const v128_t scales = wasm_f32x4_splat(scale), lows = wasm_f32x4_splat(kLow);
    const auto digits = [&](const float* at, v128_t& above, v128_t& below) {
      const v128_t value = wasm_f32x4_mul(wasm_v128_load(at), scales), rounded = wasm_f32x4_nearest(value);
      above = wasm_i32x4_trunc_sat_f32x4(rounded);
      below = wasm_i32x4_trunc_sat_f32x4(
          wasm_f32x4_nearest(wasm_f32x4_mul(wasm_f32x4_sub(value, rounded), lows)));
    };
    for (; i + 8 <= columns; i += 8) {
      v128_t above[2], below[2];
      digits(x + i, above[0], below[0]);
      digits(x + i + 4, above[1], below[1]);
      wasm_v128_store(high.data() + i, wasm_i16x8_narrow_i32x4(above[0], above[1]));
      wasm_v128_store(low.data() + i, wasm_i16x8_narrow_i32x4(below[0], below[1]));
    }
    for (; i < columns; ++i) {
      const float value = x[i] * scale, rounded = std::nearbyint(value);
      high[static_cast<std::size_t>(i)] = static_cast<std::int16_t>(rounded);
      low[static_cast<std::size_t>(i)] =
          static_cast<std::int16_t>(std::clamp(std::nearbyint((value - rounded) * kLow), -kHigh, kHigh));
    }
    for (auto at = static_cast<std::size_t>(columns); at < padded; ++at) high[at] = low[at] = 0;
  }
};

// The sum of four lanes may exceed 32 bits.
float sum_of(v128_t lanes) {
  return static_cast<float>(static_cast<std::int64_t>(wasm_i32x4_extract_lane(lanes, 0)) +
                            wasm_i32x4_extract_lane(lanes, 1) + wasm_i32x4_extract_lane(lanes, 2) +
                            wasm_i32x4_extract_lane(lanes, 3));
}

// Products of one row with four outputs, over columns whose sums fit.
void add_products(const SplitRow& x, const std::int8_t* const (&w)[kOutputs], std::int64_t begin,
                  std::int64_t end, float (&sums)[kOutputs]) {
  v128_t high[kOutputs], low[kOutputs];
  for (int j = 0; j < kOutputs; ++j) high[j] = low[j] = wasm_i32x4_splat(0);
  const auto step = [&](const std::int8_t* const(&from)[kOutputs], std::int64_t at, std::int64_t w_at)
      __attribute__((always_inline)) {
    const v128_t high0 = wasm_v128_load(x.high.data() + at), high1 = wasm_v128_load(x.high.data() + at + 8);
    const v128_t low0 = wasm_v128_load(x.low.data() + at), low1 = wasm_v128_load(x.low.data() + at + 8);
    for (int j = 0; j < kOutputs; ++j) {
      const v128_t bytes = wasm_v128_load(from[j] + w_at);
      const v128_t w0 = wasm_i16x8_extend_low_i8x16(bytes), w1 = wasm_i16x8_extend_high_i8x16(bytes);
      high[j] = wasm_i32x4_add(
          high[j], wasm_i32x4_add(wasm_i32x4_dot_i16x8(high0, w0), wasm_i32x4_dot_i16x8(high1, w1)));
      low[j] = wasm_i32x4_add(low[j],
                              wasm_i32x4_add(wasm_i32x4_dot_i16x8(low0, w0), wasm_i32x4_dot_i16x8(low1, w1)));
    }
  };
  std::int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes) step(w, i, i);
  if (i < end) {  // the last columns, padded with 0
    std::int8_t padded[kOutputs][kLanes] = {};
    const std::int8_t* rows[kOutputs];
    for (int j = 0; j < kOutputs; ++j) {
      std::memcpy(padded[j], w[j] + i, static_cast<std::size_t>(end - i));
      rows[j] = padded[j];
    }
    step(rows, i, 0);
  }
  for (int j = 0; j < kOutputs; ++j) sums[j] += sum_of(high[j]) + sum_of(low[j]) / kLow;
}

}  // namespace

void linear_rows_wasm(const LinearRows& p) {
  static thread_local std::vector<SplitRow> rows;
  rows.resize(static_cast<std::size_t>(p.x.rows));
  for (std::int64_t n = 0; n < p.x.rows; ++n)
    rows[static_cast<std::size_t>(n)].split(p.x.row<float>(n), p.x.cols);
  for (std::int64_t o = 0; o < p.w.rows; o += kOutputs) {
    const std::int8_t* w[kOutputs];
    for (int j = 0; j < kOutputs; ++j) w[j] = p.w.row<std::int8_t>(std::min(o + j, p.w.rows - 1));
    for (std::int64_t n = 0; n < p.x.rows; ++n) {
      const SplitRow& x = rows[static_cast<std::size_t>(n)];
      float sums[kOutputs] = {};
      for (std::int64_t begin = 0; begin < p.x.cols; begin += kExactColumns)
        add_products(x, w, begin, std::min(begin + kExactColumns, p.x.cols), sums);
      for (int j = 0; j < kOutputs && o + j < p.w.rows; ++j) {
        float y = sums[j] * x.step;
        if (p.scales) y *= *p.scales.row<float>(o + j);
        if (p.bias) y += p.bias.row<float>(0)[o + j];
        p.y.row<float>(n)[o + j] = y;
      }
    }
  }
}

}  // namespace thimble::cpu

#else

#include "base/error.h"

namespace thimble::cpu {

bool supports_linear_rows_wasm() {
  return false;
}

void linear_rows_wasm(const LinearRows&) {
  fail("[linear] these kernels are for WebAssembly");
}

}  // namespace thimble::cpu
#endif
