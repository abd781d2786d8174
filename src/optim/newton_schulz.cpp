#include "optim/newton_schulz.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "base/parallel.h"
#include "ops/cpu/gemm.h"
#include "ops/cpu/row_blocks.h"
#include "ops/sums.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "optim/newton_schulz.cpp"
#include <hwy/foreach_target.h>

#include "ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thimble::cpu {
namespace HWY_NAMESPACE {

// to = factor * from, in to's dtype.
void scale_rows(const Tensor& from, const Tensor& to, float factor, std::int64_t begin, std::int64_t end) {
  for (std::int64_t r = begin; r < end; ++r) {
    const Row in(from, r), out(to, r);
    for_lanes(from.cols, [&](auto at) HWY_ATTR { at.store(hn::Mul(at.load(in), all(factor)), out); });
  }
}

// p = k.a I + k.b a + k.c a2, in p's dtype. The diagonal contains the a X term of the round, so the
// product p X needs no second pass over X.
void polynomial_rows(const Tensor& a, const Tensor& a2, const Tensor& p, const NewtonSchulzCoefficients& k,
                     std::int64_t begin, std::int64_t end) {
  const V32 b = all(static_cast<float>(k.b)), c = all(static_cast<float>(k.c));
  for (std::int64_t r = begin; r < end; ++r) {
    const Row first(a, r), second(a2, r), out(p, r);
    const auto of_both = [&](auto at)
                             HWY_ATTR { return hn::MulAdd(b, at.load(first), hn::Mul(c, at.load(second))); };
    // Computed first, because p may be a2.
    const PartOfVector diagonal(r, 1);
    const V32 on_diagonal = hn::Add(all(static_cast<float>(k.a)), of_both(diagonal));
    for_lanes(a.cols, [&](auto at) HWY_ATTR { at.store(of_both(at), out); });
    diagonal.store(on_diagonal, out);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace thimble::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thimble {

namespace ref {

namespace {

struct Matrix {
  std::size_t rows, cols;
  std::vector<double> data;

  Matrix(std::size_t r, std::size_t c) : rows(r), cols(c), data(r * c) {}
  double& at(std::size_t r, std::size_t c) { return data[r * cols + c]; }
  double at(std::size_t r, std::size_t c) const { return data[r * cols + c]; }
};

Matrix product(const Matrix& a, const Matrix& b) {
  Matrix c(a.rows, b.cols);
  for (std::size_t i = 0; i < a.rows; ++i)
    for (std::size_t k = 0; k < a.cols; ++k)
      for (std::size_t j = 0; j < b.cols; ++j) c.at(i, j) += a.at(i, k) * b.at(k, j);
  return c;
}

Matrix flipped(const Matrix& a) {
  Matrix b(a.cols, a.rows);
  for (std::size_t i = 0; i < a.rows; ++i)
    for (std::size_t j = 0; j < a.cols; ++j) b.at(j, i) = a.at(i, j);
  return b;
}

}  // namespace

void newton_schulz(const Tensor& matrix, int steps, NewtonSchulzCoefficients k) {
  Matrix x(static_cast<std::size_t>(matrix.rows), static_cast<std::size_t>(matrix.cols));
  double squares = 0;
  for (std::size_t r = 0; r < x.rows; ++r)
    for (std::size_t c = 0; c < x.cols; ++c) {
      x.at(r, c) = static_cast<double>(matrix.row<float>(static_cast<std::int64_t>(r))[c]);
      squares += x.at(r, c) * x.at(r, c);
    }
  for (double& value : x.data) value /= std::sqrt(squares) + kNewtonSchulzEps;
  const bool tall = x.rows > x.cols;
  if (tall) x = flipped(x);
  for (int step = 0; step < steps; ++step) {
    const Matrix a = product(x, flipped(x)), a2 = product(a, a);
    Matrix b(a.rows, a.cols);
    for (std::size_t i = 0; i < b.data.size(); ++i) b.data[i] = k.b * a.data[i] + k.c * a2.data[i];
    const Matrix bx = product(b, x);
    for (std::size_t i = 0; i < x.data.size(); ++i) x.data[i] = k.a * x.data[i] + bx.data[i];
  }
  if (tall) x = flipped(x);
  for (std::size_t r = 0; r < x.rows; ++r)
    for (std::size_t c = 0; c < x.cols; ++c)
      matrix.row<float>(static_cast<std::int64_t>(r))[c] = static_cast<float>(x.at(r, c));
}

}  // namespace ref

namespace cpu {

HWY_EXPORT(scale_rows);
HWY_EXPORT(polynomial_rows);

namespace {

// Scratch of a round: a = X X^T and the polynomial p in the dtype of the products, a^2 in f32, and
// X before and after.
struct Matrices {
  Tensor a, a2, p, x, next;

  Matrices(ScratchCutter& cutter, std::int64_t rows, std::int64_t cols, DType dtype) {
    const std::int64_t small = std::min(rows, cols);
    a = take(cutter, small, small, dtype);
    a2 = take(cutter, small, small, DType::f32);
    p = dtype == DType::f32 ? a2 : take(cutter, small, small, dtype);
    x = take(cutter, rows, cols, dtype);
    if (dtype == DType::f32) return;  // in f32 the matrix itself is the other X
    next = take(cutter, rows, cols, dtype);
  }

 private:
  static Tensor take(ScratchCutter& cutter, std::int64_t rows, std::int64_t cols, DType dtype) {
    std::byte* memory;
    cutter.take(memory, rows * cols * dtype_bytes(dtype));
    return {memory, rows, cols, cols, dtype, Device::cpu};
  }
};

void scale(const Tensor& from, const Tensor& to, float factor) {
  parallel_for(from.rows, rows_per_task(from.cols), [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(scale_rows)(from, to, factor, begin, end);
  });
}

}  // namespace

void newton_schulz(const Context& context, const Tensor& matrix, std::span<float> scratch,
                   std::span<const NewtonSchulzCoefficients> rounds, DType dtype) {
  check(matrix.contiguous() && matrix.dtype == DType::f32, "[newton_schulz] expected contiguous f32, got {}",
        matrix.shape().text());
  const std::int64_t rows = matrix.rows, cols = matrix.cols, needed = newton_schulz_scratch(rows, cols);
  check(static_cast<std::int64_t>(scratch.size()) >= needed,
        "[newton_schulz] expected {} floats of scratch, got {}", needed, scratch.size());
  ScratchCutter cutter(reinterpret_cast<std::byte*>(scratch.data()));
  Matrices m(cutter, rows, cols, dtype);
  if (dtype == DType::f32) m.next = m.x, m.x = matrix;
  Gemm& gemm = context.state<Gemm>();

  const std::span<const float> values(matrix.row<float>(0), static_cast<std::size_t>(matrix.count()));
  scale(matrix, m.x, static_cast<float>(1 / (std::sqrt(sum_of_squares(values)) + kNewtonSchulzEps)));
  // Nothing is transposed in memory: if X^T is stored, A = X X^T is computed with swapped transpose
  // flags, and P X as X^T P.
  const bool tall = rows > cols;
  for (const NewtonSchulzCoefficients& k : rounds) {
    tall ? gemm.run(transposed(m.x), {m.x}, m.a, false) : gemm.run({m.x}, transposed(m.x), m.a, false);
    gemm.run({m.a}, {m.a}, m.a2, false);
    parallel_for(m.a.rows, rows_per_task(m.a.cols), [&](std::int64_t begin, std::int64_t end) {
      HWY_DYNAMIC_DISPATCH(polynomial_rows)(m.a, m.a2, m.p, k, begin, end);
    });
    tall ? gemm.run({m.x}, {m.p}, m.next, false) : gemm.run({m.p}, {m.x}, m.next, false);
    std::swap(m.x, m.next);
  }
  if (m.x.data != matrix.data) scale(m.x, matrix, 1);
}

void newton_schulz(const Context& context, const Tensor& matrix, std::span<float> scratch, int steps,
                   NewtonSchulzCoefficients k, DType dtype) {
  const std::vector<NewtonSchulzCoefficients> rounds(static_cast<std::size_t>(steps), k);
  newton_schulz(context, matrix, scratch, rounds, dtype);
}

}  // namespace cpu

std::int64_t newton_schulz_scratch(std::int64_t rows, std::int64_t cols) {
  std::int64_t bytes = 0;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    cpu::ScratchCutter cutter;
    cpu::Matrices(cutter, rows, cols, dtype);
    bytes = std::max(bytes, cutter.bytes());
  }
  return bytes / static_cast<std::int64_t>(sizeof(float));
}

}  // namespace thimble
#endif
