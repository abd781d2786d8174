#include "ops/norm.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "ops/definition.h"

namespace thimble {

namespace {

std::vector<Shape> rmsnorm_shapes(std::span<const Shape> in, const Attributes& attributes) {
  const ShapeCheck c("rmsnorm", in, 1, 2);
  const Shape& x = c.rows(0, "x");
  c.optional_vector(1, "weight", x.cols);
  check(attributes.as<RmsNormAttributes>().eps >= 0, "[rmsnorm] eps must not be negative");
  return {x, statistic(x)};
}

std::vector<Shape> layernorm_shapes(std::span<const Shape> in, const Attributes& attributes) {
  const ShapeCheck c("layernorm", in, 1, 3);
  const Shape& x = c.rows(0, "x");
  c.optional_vector(1, "weight", x.cols);
  c.optional_vector(2, "bias", x.cols);
  check(attributes.as<LayerNormAttributes>().eps >= 0, "[layernorm] eps must not be negative");
  return {x, statistic(x), statistic(x)};
}

struct RmsNormFormula {
  using View = RmsNorm;

  template <class T>
  static void forward(const RmsNorm& op) {
    const std::int64_t C = op.x.cols;
    for (std::int64_t n = 0; n < op.x.rows; ++n) {
      const T* x = op.x.row<T>(n);
      T squares = 0;
      for (std::int64_t c = 0; c < C; ++c) squares += x[c] * x[c];
      const T rstd = T(1) / std::sqrt(squares / T(C) + T(op.at.eps));
      for (std::int64_t c = 0; c < C; ++c) {
        const T w = op.w ? op.w.row<T>(0)[c] : T(1);
        op.y.row<T>(n)[c] = T(op.at.scale) * x[c] * rstd * w;
      }
      *op.rstd.row<T>(n) = rstd;
    }
  }

  template <class T>
  static void backward(const RmsNorm& op) {
    const std::int64_t C = op.x.cols;
    for (std::int64_t n = 0; n < op.x.rows; ++n) {
      const T* x = op.x.row<T>(n);
      const T* dy = op.dy.row<T>(n);
      const T rstd = *op.rstd.row<T>(n);
      const auto g = [&](std::int64_t c) {
        return T(op.at.scale) * dy[c] * (op.w ? op.w.row<T>(0)[c] : T(1));
      };
      T mean = 0;
      for (std::int64_t c = 0; c < C; ++c) mean += g(c) * x[c] * rstd / T(C);
      for (std::int64_t c = 0; c < C; ++c) {
        if (op.dx) store(op.dx.row<T>(n)[c], rstd * (g(c) - x[c] * rstd * mean), op.add_dx);
        if (op.dw) op.dw.row<T>(0)[c] += T(op.at.scale) * dy[c] * x[c] * rstd;
      }
    }
  }
};

struct LayerNormFormula {
  using View = LayerNorm;

  template <class T>
  static void forward(const LayerNorm& op) {
    const std::int64_t C = op.x.cols;
    for (std::int64_t n = 0; n < op.x.rows; ++n) {
      const T* x = op.x.row<T>(n);
      T mean = 0, variance = 0;
      for (std::int64_t c = 0; c < C; ++c) mean += x[c] / T(C);
      for (std::int64_t c = 0; c < C; ++c) variance += (x[c] - mean) * (x[c] - mean) / T(C);
      const T rstd = T(1) / std::sqrt(variance + T(op.at.eps));
      for (std::int64_t c = 0; c < C; ++c) {
        const T w = op.w ? op.w.row<T>(0)[c] : T(1), b = op.b ? op.b.row<T>(0)[c] : T(0);
        op.y.row<T>(n)[c] = (x[c] - mean) * rstd * w + b;
      }
      *op.mean.row<T>(n) = mean;
      *op.rstd.row<T>(n) = rstd;
    }
  }

  template <class T>
  static void backward(const LayerNorm& op) {
    const std::int64_t C = op.x.cols;
    for (std::int64_t n = 0; n < op.x.rows; ++n) {
      const T* dy = op.dy.row<T>(n);
      const T mean = *op.mean.row<T>(n), rstd = *op.rstd.row<T>(n);
      const auto g = [&](std::int64_t c) { return dy[c] * (op.w ? op.w.row<T>(0)[c] : T(1)); };
      const auto x_hat = [&](std::int64_t c) { return (op.x.row<T>(n)[c] - mean) * rstd; };
      T mean_g = 0, mean_gx = 0;
      for (std::int64_t c = 0; c < C; ++c) mean_g += g(c) / T(C), mean_gx += g(c) * x_hat(c) / T(C);
      for (std::int64_t c = 0; c < C; ++c) {
        if (op.dx) store(op.dx.row<T>(n)[c], rstd * (g(c) - mean_g - x_hat(c) * mean_gx), op.add_dx);
        if (op.dw) op.dw.row<T>(0)[c] += dy[c] * x_hat(c);
        if (op.db) op.db.row<T>(0)[c] += dy[c];
      }
    }
  }
};

}  // namespace

constinit const OpDefinition op::kRmsNorm = {
    .name = "rmsnorm",
    .inputs = {{{"x", is::differentiable | is::saved},
                {"weight", is::differentiable | is::parameter | is::saved}}},
    .outputs = {{{.name = "y"}, {.name = "rstd", .saved = true}}},
    .shapes = rmsnorm_shapes,
    .reference = &reference_kernels<RmsNormFormula>,
    .cpu = &cpu::kRmsNorm};

constinit const OpDefinition op::kLayerNorm = {
    .name = "layernorm",
    .inputs = {{{"x", is::differentiable | is::saved},
                {"weight", is::differentiable | is::parameter | is::saved},
                {"bias", is::differentiable | is::parameter}}},
    .outputs = {{{.name = "y"}, {.name = "mean", .saved = true}, {.name = "rstd", .saved = true}}},
    .shapes = layernorm_shapes,
    .reference = &reference_kernels<LayerNormFormula>,
    .cpu = &cpu::kLayerNorm};

Value op::rmsnorm(Tape& tape, Value x, Value weight, float eps, float scale) {
  return tape.record(op::kRmsNorm, {x, weight}, RmsNormAttributes{eps, scale})[0];
}

Value op::layernorm(Tape& tape, Value x, Value weight, Value bias, float eps) {
  return tape.record(op::kLayerNorm, {x, weight, bias}, LayerNormAttributes{eps})[0];
}

}  // namespace thimble
