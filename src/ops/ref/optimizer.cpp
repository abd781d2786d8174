// The reference of what is no tape op: Adam, Newton-Schulz, sums.
#include <cmath>
#include <vector>

#include "ops/adam.h"
#include "ops/newton_schulz.h"
#include "ops/sums.h"

namespace thimble::ref {

void adam(const AdamStep& step, std::span<float> p, std::span<const float> g, std::span<float> m,
          std::span<float> v) {
  const double bias1 = 1 - std::pow(static_cast<double>(step.beta1), static_cast<double>(step.t));
  const double bias2 = 1 - std::pow(static_cast<double>(step.beta2), static_cast<double>(step.t));
  for (std::size_t i = 0; i < p.size(); ++i) {
    const double gradient = static_cast<double>(g[i]) * step.grad_scale;
    const double m_now =
        step.beta1 * static_cast<double>(m[i]) + (1 - static_cast<double>(step.beta1)) * gradient;
    const double v_now =
        step.beta2 * static_cast<double>(v[i]) + (1 - static_cast<double>(step.beta2)) * gradient * gradient;
    const double move = m_now / bias1 / (std::sqrt(v_now / bias2) + step.eps);
    p[i] = static_cast<float>(p[i] * (1 - static_cast<double>(step.lr) * step.decay) - step.lr * move);
    m[i] = static_cast<float>(m_now);
    v[i] = static_cast<float>(v_now);
  }
}

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

double sum_of_squares(std::span<const float> values) {
  double sum = 0;
  for (float value : values) sum += static_cast<double>(value) * static_cast<double>(value);
  return sum;
}

double weighted_sum(std::span<const float> values, std::span<const float> weights) {
  double sum = 0;
  for (std::size_t i = 0; i < values.size(); ++i)
    sum += static_cast<double>(values[i]) * static_cast<double>(weights[i]);
  return sum;
}

}  // namespace thimble::ref
