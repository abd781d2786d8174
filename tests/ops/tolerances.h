// Maximum errors of results in f32, bf16 or f16 relative to the reference in f64, with reasons.
//
// The error of a tensor is its maximum difference divided by its maximum magnitude. For fewer than
// 64 values it is the relative error |a - b| / |b| (Euclidean norm), which a single wrong value
// dominates. For 64 values or more the cosine is checked too: 1 - cosine is half the squared angle,
// so its bound is the square of the tolerance.
//
// u = 2^-24 = 6e-8 is the rounding of one f32 operation; results are O(1). Bounds are about four
// times the measured errors (AVX-512, oneDNN 2.6), which allows for other vector widths and orders
// of summation, but not for a wrong formula.
#pragma once

#include <tuple>

#include "ops/op_cases.h"

namespace thimble {

// bf16 has 8 bits of significand, so rounding changes a value by up to 2^-8 of itself. Inputs are
// exact in bf16 and arithmetic is f32, so a result has one such rounding error; the additional 1 %
// covers the f32 arithmetic. Gradients of parameters are f32 and have the same bound.
inline constexpr double kBf16Rounding = 0x1p-8 * 1.01;

// f16 has 11 bits: its rounding error is close to that of f32 sums, so the bounds are added.
inline constexpr double kF16Rounding = 0x1p-11 * 1.01;

inline Tolerance tolerance_of(Op op, DType dtype) {
  const auto& [f32, half] = std::tie(test_row(op).f32, test_row(op).half);
  if (dtype != DType::bf16 && dtype != DType::f16) return f32;
  const double u = dtype == DType::bf16 ? kBf16Rounding : kF16Rounding;
  const Tolerance rounded{half.forward * u, half.gradient * u + half.gradient_in_f32, half.reason};
  if (dtype == DType::bf16) return rounded;
  return {rounded.forward + f32.forward, rounded.gradient + f32.gradient, rounded.reason};
}

// Reference backward in f64 compared with the complex step (h = 1e-30: no cancellation, no
// truncation). What remains is the rounding of f64 sums: 1e-16 times the number of terms.
inline constexpr double kComplexStepTolerance = 1e-12;

// `+=` compared with earlier contents plus `=`: one more rounding, of a sum a few times larger.
constexpr double adds_tolerance(DType dtype) {
  return dtype == DType::bf16 ? 2 * kBf16Rounding : dtype == DType::f16 ? 2 * kF16Rounding : 5e-7;
}

// The precision of a cosine in f64, whatever the tolerance.
inline constexpr double kCosineRounding = 1e-14;

}  // namespace thimble
