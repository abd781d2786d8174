#pragma once

#include "ops/layernorm.h"
#include "ops/ref/scalar.h"

namespace thimble::ref {

struct LayerNormRef {
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

}  // namespace thimble::ref
