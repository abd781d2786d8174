#pragma once

#include "ops/ref/scalar.h"
#include "ops/rmsnorm.h"

namespace thimble::ref {

struct RmsNormRef {
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

}  // namespace thimble::ref
