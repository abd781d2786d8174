// Newton-Schulz: approximates the nearest (semi-)orthogonal matrix in a few rounds. Muon applies it
// to its momentum.
//
//   X = G / (|G|_F + 1e-7), transposed if it has more rows than columns
//   repeat: A = X X^T;  B = b A + c A^2;  X = a X + B X          a, b, c = 3.4445, -4.7750, 2.0315
//   transposed back
//
// G [rows, cols], contiguous f32, is replaced by X. Coefficients may differ from round to round;
// without rounds G is only normalized.
// The CPU version multiplies in f32, or in bf16 with sums in f32. scratch must have
// newton_schulz_scratch() floats.
#pragma once

#include <cstdint>
#include <span>

#include "tensor/device.h"
#include "tensor/tensor.h"

namespace thimble {

// The coefficients of one round.
struct NewtonSchulzCoefficients {
  double a = 3.4445, b = -4.7750, c = 2.0315;
};

inline constexpr double kNewtonSchulzEps = 1e-7;
inline constexpr int kNewtonSchulzSteps = 5;

// Floats of scratch for one matrix, in either dtype.
std::int64_t newton_schulz_scratch(std::int64_t rows, std::int64_t cols);

namespace ref {
void newton_schulz(const Tensor& matrix, int steps = kNewtonSchulzSteps, NewtonSchulzCoefficients k = {});
}  // namespace ref
namespace cpu {
void newton_schulz(const Context& context, const Tensor& matrix, std::span<float> scratch,
                   std::span<const NewtonSchulzCoefficients> rounds, DType dtype = DType::f32);
void newton_schulz(const Context& context, const Tensor& matrix, std::span<float> scratch,
                   int steps = kNewtonSchulzSteps, NewtonSchulzCoefficients k = {}, DType dtype = DType::f32);
}  // namespace cpu

}  // namespace thimble
