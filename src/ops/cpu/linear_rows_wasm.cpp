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

// WebAssembly has no fused multiply-add, and converting 8-bit weights to f32 takes several times as
// long as their products. It has a product of pairs of i16 that adds to i32. A row of x is
// therefore split into two i16 digits: x = step * (high + low / kLow). Splitting rounds like one
// f32 product, and the sums of integers are exact, so the bits of a row do not depend on the other
// rows.
constexpr float kHigh = 32767, kLow = 65534;
constexpr std::size_t kGroup = 8;            // columns that one product reads
constexpr std::size_t kExactColumns = 2048;  // sums of that many products fit in i32
constexpr float kSmallestStep = 1e-37f;      // its reciprocal is finite
// Two rows of x times a block of outputs: both stay in the first-level cache.
constexpr std::int64_t kOutputsPerBlock = 32;
constexpr std::int64_t kOutputsAhead = 4;  // of those that are multiplied, in touch()

// The digits of all rows of x: of each 8 columns, first the high ones, then the low ones.
class SplitRows {
 public:
  void split(const Tensor& x) {
    const auto columns = static_cast<std::size_t>(x.cols), rows = static_cast<std::size_t>(x.rows);
    stride_ = (columns + kGroup - 1) / kGroup * kGroup * 2;
    digits_.resize(rows * stride_);
    steps_.resize(rows);
    for (std::size_t n = 0; n < rows; ++n)
      steps_[n] =
          split_row(x.row<float>(static_cast<std::int64_t>(n)), columns, digits_.data() + n * stride_);
  }
  const std::int16_t* row(std::int64_t n) const {
    return digits_.data() + static_cast<std::size_t>(n) * stride_;
  }
  float step(std::int64_t n) const { return steps_[static_cast<std::size_t>(n)]; }

 private:
  // NaN if a value is not finite; then every output is, as in the other kernels.
  static float step_of(const float* x, std::size_t columns) {
    v128_t largest = wasm_f32x4_splat(0), zero = largest;
    std::size_t i = 0;
    for (; i + 4 <= columns; i += 4) {
      const v128_t values = wasm_v128_load(x + i);
      largest = wasm_f32x4_pmax(largest, wasm_f32x4_abs(values));
      zero = wasm_f32x4_add(zero, wasm_f32x4_mul(values, wasm_f32x4_splat(0)));
    }
    float maximum[4], zeros[4];
    wasm_v128_store(maximum, largest), wasm_v128_store(zeros, zero);
    float most = 0, sum = 0;
    for (int k = 0; k < 4; ++k) most = std::max(most, maximum[k]), sum += zeros[k];
    for (; i < columns; ++i) most = std::max(most, std::fabs(x[i])), sum += x[i] * 0;
    return most / kHigh + sum;
  }

  static void split_group(const float* x, float scale, std::int16_t* to) {
    // Adding it rounds to an integer, which is then in the lowest bits.
    const v128_t magic = wasm_f32x4_splat(12582912.0f);  // 1.5 * 2^23
    v128_t high[2], low[2];
    for (int k = 0; k < 2; ++k) {
      const v128_t value = wasm_f32x4_mul(wasm_v128_load(x + 4 * k), wasm_f32x4_splat(scale));
      high[k] = wasm_f32x4_add(value, magic);
      const v128_t rest = wasm_f32x4_sub(value, wasm_f32x4_sub(high[k], magic));
      low[k] = wasm_f32x4_add(wasm_f32x4_mul(rest, wasm_f32x4_splat(kLow)), magic);
    }
    const auto integers = [&](const v128_t(&shifted)[2]) {
      return wasm_i16x8_narrow_i32x4(wasm_i32x4_sub(shifted[0], magic), wasm_i32x4_sub(shifted[1], magic));
    };
    wasm_v128_store(to, integers(high));
    wasm_v128_store(to + kGroup, integers(low));
  }

  // Returns the step.
  static float split_row(const float* x, std::size_t columns, std::int16_t* to) {
    const float step = step_of(x, columns), scale = step > kSmallestStep ? 1 / step : 0;
    std::size_t left = columns;
    for (; left >= kGroup; left -= kGroup, x += kGroup, to += 2 * kGroup) split_group(x, scale, to);
    if (left == 0) return step;
    float last[kGroup] = {};
    std::copy_n(x, left, last);
    split_group(last, scale, to);
    return step;
  }

  std::size_t stride_ = 0;
  std::vector<std::int16_t> digits_;
  std::vector<float> steps_;
};

// high + low / kLow, exactly until the last addition: four lanes of i32 may exceed 32 bits.
double sum_of(v128_t high, v128_t low) {
  const auto pairs = [](v128_t lanes) {
    return wasm_f64x2_add(wasm_f64x2_convert_low_i32x4(lanes),
                          wasm_f64x2_convert_low_i32x4(wasm_i64x2_shuffle(lanes, lanes, 1, 0)));
  };
  const v128_t sums =
      wasm_f64x2_add(pairs(high), wasm_f64x2_mul(pairs(low), wasm_f64x2_splat(1 / double{kLow})));
  return wasm_f64x2_extract_lane(sums, 0) + wasm_f64x2_extract_lane(sums, 1);
}

// The sums of products of R rows with K outputs.
template <int R, int K>
struct Sums {
  v128_t high[R][K], low[R][K];

  Sums() {
    for (int r = 0; r < R; ++r)
      for (int j = 0; j < K; ++j) high[r][j] = low[r][j] = wasm_i32x4_splat(0);
  }
  // The next 8 columns, at a group after those of the pointers.
  template <int Group = 0>
  __attribute__((always_inline)) void add(const std::int16_t* const (&x)[R],
                                          const std::int8_t* const (&w)[K]) {
    v128_t weights[K];
    for (int j = 0; j < K; ++j) weights[j] = wasm_i16x8_load8x8(w[j] + Group * kGroup);
    for (int r = 0; r < R; ++r) {
      const std::int16_t* digits = x[r] + Group * 2 * kGroup;
      const v128_t above = wasm_v128_load(digits), below = wasm_v128_load(digits + kGroup);
      for (int j = 0; j < K; ++j) {
        high[r][j] = wasm_i32x4_add(high[r][j], wasm_i32x4_dot_i16x8(above, weights[j]));
        low[r][j] = wasm_i32x4_add(low[r][j], wasm_i32x4_dot_i16x8(below, weights[j]));
      }
    }
  }
};

// Loads a value and drops it: WebAssembly has no prefetch.
void touch(const std::int8_t* at) {
  static_cast<void>(*static_cast<const volatile std::int8_t*>(at));
}

// Products of R rows with K outputs, of `columns` columns whose sums fit. Moves the pointers behind
// them. A single row waits for weights from memory, so it also touches those of later outputs, at
// `ahead`.
template <int R, int K>
__attribute__((always_inline)) void add_products(const std::int16_t* (&x)[R], const std::int8_t* (&w)[K],
                                                 const std::int8_t*& ahead, std::size_t columns,
                                                 double (&sums)[R][K]) {
  const auto move = [&](std::size_t by) __attribute__((always_inline)) {
    for (auto& at : x) at += 2 * by;
    for (auto& at : w) at += by;
  };
  Sums<R, K> part;
  if constexpr (R == 1) {
    for (; columns >= 2 * kGroup; columns -= 2 * kGroup) {
      touch(ahead);
      part.add(x, w);
      part.template add<1>(x, w);
      move(2 * kGroup);
      ahead += K * 2 * kGroup;
    }
  }
  for (; columns >= kGroup; columns -= kGroup) {
    part.add(x, w);
    move(kGroup);
  }
  if (columns > 0) {  // the last columns, padded with 0
    std::int8_t padded[K][kGroup] = {};
    const std::int8_t* last[K];
    for (int j = 0; j < K; ++j) last[j] = static_cast<std::int8_t*>(std::memcpy(padded[j], w[j], columns));
    part.add(x, last);
  }
  for (int r = 0; r < R; ++r)
    for (int j = 0; j < K; ++j) sums[r][j] += sum_of(part.high[r][j], part.low[r][j]);
}

// Outputs [o, o + K) of rows [n, n + R).
template <int R, int K>
void put_outputs(const LinearRows& p, const SplitRows& split, std::int64_t n, std::int64_t o) {
  const std::int16_t* x[R];
  const std::int8_t* w[K];
  for (int r = 0; r < R; ++r) x[r] = split.row(n + r);
  for (int j = 0; j < K; ++j) w[j] = p.w.row<std::int8_t>(o + j);
  const bool more = o + kOutputsAhead + K <= p.w.rows;
  const std::int8_t* ahead = more ? p.w.row<std::int8_t>(o + kOutputsAhead) : w[0];
  double sums[R][K] = {};
  for (auto left = static_cast<std::size_t>(p.x.cols); left > 0; left -= std::min(left, kExactColumns))
    add_products<R, K>(x, w, ahead, std::min(left, kExactColumns), sums);
  for (int r = 0; r < R; ++r)
    for (int j = 0; j < K; ++j) {
      float y = static_cast<float>(sums[r][j]) * split.step(n + r);
      if (p.scales) y *= *p.scales.row<float>(o + j);
      if (p.bias) y += p.bias.row<float>(0)[o + j];
      p.y.row<float>(n + r)[o + j] = y;
    }
}

// All outputs [begin, end) of rows [n, n + R).
template <int R>
void put_block(const LinearRows& p, const SplitRows& split, std::int64_t n, std::int64_t begin,
               std::int64_t end) {
  std::int64_t o = begin;
  for (; o + 2 <= end; o += 2) put_outputs<R, 2>(p, split, n, o);
  if (o < end) put_outputs<R, 1>(p, split, n, o);
}

}  // namespace

void linear_rows_wasm(const LinearRows& p) {
  static thread_local SplitRows split;
  split.split(p.x);
  for (std::int64_t begin = 0; begin < p.w.rows; begin += kOutputsPerBlock) {
    const std::int64_t end = std::min(begin + kOutputsPerBlock, p.w.rows);
    std::int64_t n = 0;
    for (; n + 2 <= p.x.rows; n += 2) put_block<2>(p, split, n, begin, end);
    if (n < p.x.rows) put_block<1>(p, split, n, begin, end);
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
