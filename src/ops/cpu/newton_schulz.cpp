#include "ops/newton_schulz.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/parallel.h"
#include "ops/cpu/gemm.h"
#include "ops/sums.h"
#include "tensor/arena.h"

namespace thimble {

namespace {

constexpr std::int64_t kFloats = kAlignment / static_cast<std::int64_t>(sizeof(float));

}  // namespace

std::int64_t newton_schulz_scratch(std::int64_t rows, std::int64_t cols) {
  const std::int64_t small = std::min(rows, cols);
  return 2 * align_up(small * small, kFloats) + align_up(rows * cols, kFloats);
}

namespace cpu {

void newton_schulz(const Context& context, const Tensor& matrix, std::span<float> scratch, int steps,
                   NewtonSchulzCoefficients k) {
  check(matrix.contiguous() && matrix.dtype == DType::f32, "[newton_schulz] expected contiguous f32, got {}",
        matrix.shape().text());
  const std::int64_t rows = matrix.rows, cols = matrix.cols, small = std::min(rows, cols);
  check(static_cast<std::int64_t>(scratch.size()) >= newton_schulz_scratch(rows, cols),
        "[newton_schulz] expected {} floats of scratch, got {}", newton_schulz_scratch(rows, cols),
        scratch.size());
  float* place = scratch.data();
  const Tensor a = make_tensor(place, small, small);
  const Tensor b = make_tensor(place + align_up(small * small, kFloats), small, small);
  const Tensor spare = make_tensor(place + 2 * align_up(small * small, kFloats), rows, cols);
  Gemm& gemm = context.state<Gemm>();

  const std::span<float> x(matrix.row<float>(0), static_cast<std::size_t>(matrix.count()));
  const auto inverse = static_cast<float>(1 / (std::sqrt(sum_of_squares(x)) + kNewtonSchulzEps));
  for (float& value : x) value *= inverse;

  // Transposing never happens: with X^T in memory, A = X X^T reads it the other way round, and B X becomes
  // X^T B.
  const bool tall = rows > cols;
  Tensor now = matrix, next = spare;
  for (int step = 0; step < steps; ++step) {
    tall ? gemm.run(transposed(now), {now}, a, false) : gemm.run({now}, transposed(now), a, false);
    gemm.run({a}, {a}, b, false);
    const auto count = static_cast<std::size_t>(a.count());
    float *of_a = a.row<float>(0), *of_b = b.row<float>(0);
    for (std::size_t i = 0; i < count; ++i)
      of_b[i] = static_cast<float>(k.b) * of_a[i] + static_cast<float>(k.c) * of_b[i];
    // a X + B X = (a I + B) X: the diagonal takes the first term, the product needs no second pass over X.
    for (std::int64_t i = 0; i < small; ++i) of_b[i * small + i] += static_cast<float>(k.a);
    tall ? gemm.run({now}, {b}, next, false) : gemm.run({b}, {now}, next, false);
    std::swap(now, next);
  }
  if (now.data != matrix.data) std::copy_n(now.row<float>(0), matrix.count(), matrix.row<float>(0));
}

}  // namespace cpu
}  // namespace thimble
