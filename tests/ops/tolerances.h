// How far a result in f32, bf16 or f16 may lie from the reference in f64, and why.
//
// The error of a tensor is its largest difference over its largest magnitude; of fewer than 64 values, the
// plain relative error |a - b| / |b| (Euclidean), which one wrong value cannot hide in. Of 64 values and more
// the cosine is looked at, too: 1 - cosine is half the square of the angle, so the bound is the square of the
// tolerance.
//
// u = 2^-24 = 6e-8 is the rounding of one f32 operation; results are O(1). Bounds are some four times what
// was measured (AVX-512, oneDNN 2.6): room for other vector widths and orders of summation, not for a wrong
// formula.
#pragma once

#include <tuple>

#include "ops/op_cases.h"

namespace thimble {

// bf16 has 8 bits: a rounding moves a value by up to 2^-8 of itself. Inputs are numbers that bf16 holds, the
// arithmetic is f32, so a result that is rounded once, when it is stored, is off by that; the rest of
// kBf16Rounding is for the f32 before it. Gradients of parameters are f32, and are held to the same bound.
inline constexpr double kBf16Rounding = 0x1p-8 * 1.01;

// f16 has 11 bits. That is so near to what f32 sums may be off by that both are allowed.
inline constexpr double kF16Rounding = 0x1p-11 * 1.01;

inline Tolerance tolerance_of(Op op, DType dtype) {
  const auto& [f32, half] = std::tie(test_row(op).f32, test_row(op).half);
  if (dtype != DType::bf16 && dtype != DType::f16) return f32;
  const double u = dtype == DType::bf16 ? kBf16Rounding : kF16Rounding;
  const Tolerance rounded{half.forward * u, half.gradient * u + half.gradient_in_f32, half.reason};
  if (dtype == DType::bf16) return rounded;
  return {rounded.forward + f32.forward, rounded.gradient + f32.gradient, rounded.reason};
}

// Reference backward in f64 against the complex step (h = 1e-30: no cancellation, no truncation): what is
// left is the rounding of sums in f64, 1e-16 times the number of terms.
inline constexpr double kComplexStepTolerance = 1e-12;

// `+=` against earlier contents plus `=`: one more rounding, of a sum that is a few times larger than either.
constexpr double adds_tolerance(DType dtype) {
  return dtype == DType::bf16 ? 2 * kBf16Rounding : dtype == DType::f16 ? 2 * kF16Rounding : 5e-7;
}

// Cosines in f64 are good to this much, whatever the tolerance.
inline constexpr double kCosineRounding = 1e-14;

}  // namespace thimble
