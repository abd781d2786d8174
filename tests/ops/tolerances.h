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

#include <string_view>

#include "ops/op.h"

namespace thimble {

struct Tolerance {
  double forward, gradient;
  std::string_view reason;
};

constexpr Tolerance f32_tolerance_of(Op op) {
  switch (op) {
    case Op::embedding:
      return {0, 2e-6, "forward copies; a row of the gradient sums up to N rows in f32"};
    case Op::gather:
    case Op::cast:
    case Op::fake_quant:
      return {0, 0, "copies, and a rule that is f32 in the reference, too"};
    case Op::dropout:
      return {3e-7, 3e-7, "one product with 1 / (1 - p), itself rounded"};
    case Op::add_scaled:
    case Op::residual_mix:
      return {2e-7, 4e-6, "two products and a sum; dscale of a channel sums few terms of both signs"};
    case Op::gated_skip:
      return {2e-6, 4e-6, "as smear; dw and dgate of a channel sum few terms of both signs"};
    case Op::smear:
      return {2e-6, 1e-6, "exp to a few u, then (1 - g) x + g x', which may cancel"};
    case Op::activation:
    case Op::softcap:
      return {5e-7, 5e-6, "exp or tanh to a few u; near saturation 1 - t^2 cancels"};
    case Op::rmsnorm:
    case Op::layernorm:
      return {6e-7, 2e-6, "a mean over C and a root; backward subtracts a row's mean"};
    case Op::residual_norm:
      return {6e-7, 2e-5,
              "as rmsnorm; dscale of a channel sums few terms of both signs, each with that error"};
    case Op::rope:
      return {6e-7, 2e-6, "a norm, then two products of a rotation"};
    case Op::exclusive_attention:
      return {1e-6, 1e-6, "y - (y . u) u: what is left may be shorter than y"};
    case Op::linear:
      return {2e-6, 2e-6, "sums of up to 200 products in any order: sqrt(200) u"};
    case Op::attention:
      return {1e-6, 3e-6,
              "scores of D products inside exp; backward subtracts delta and sums over rows and heads"};
    case Op::cached_attention:
      return {1e-6, 0, "as attention; no backward"};
    case Op::head_loss:
      return {5e-6, 3e-6,
              "logits of C products inside exp and log, whose result may be short; dw sums over N rows"};
  }
  return {0, 0, "an op without a row here must be exact"};
}

// bf16 has 8 bits: a rounding moves a value by up to 2^-8 of itself. Inputs are numbers that bf16 holds, the
// arithmetic is f32, so a result that is rounded once, when it is stored, is off by that; the rest of
// kBf16Rounding is for the f32 before it. Gradients of parameters are f32, and are held to the same bound.
inline constexpr double kBf16Rounding = 0x1p-8 * 1.01;

// u: one rounding.
constexpr Tolerance half_tolerance_of(Op op, double u) {
  switch (op) {
    case Op::embedding:
      return {0, 2e-6, "forward copies; the gradient of the table is f32"};
    case Op::gather:
    case Op::cast:
      return {0, 0, "copies, and roundings that the reference does, too"};
    case Op::softcap:
      return {u, 10 * u, "backward has y, rounded: 2u of each dy where tanh is saturated, while dx is short"};
    case Op::residual_norm:
      return {
          2 * u, 10 * u,
          "the stream s is rounded, then its norm; backward has that s, and dscale sums terms of both signs"};
    case Op::exclusive_attention:
      return {u, 2 * u, "one rounding; what is left of dy may be shorter than dy"};
    case Op::attention:
    case Op::cached_attention:
    case Op::head_loss:
      return {2 * u, 4 * u, "probabilities are rounded before they are multiplied, then the result is"};
    default:
      return {u, u, "one rounding of the result"};
  }
}

// f16 has 11 bits. That is so near to what f32 sums may be off by that both are allowed.
inline constexpr double kF16Rounding = 0x1p-11 * 1.01;

constexpr Tolerance tolerance_of(Op op, DType dtype) {
  const Tolerance f32 = f32_tolerance_of(op);
  if (dtype == DType::bf16) return half_tolerance_of(op, kBf16Rounding);
  if (dtype != DType::f16) return f32;
  const Tolerance f16 = half_tolerance_of(op, kF16Rounding);
  return {f16.forward + f32.forward, f16.gradient + f32.gradient, f16.reason};
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
