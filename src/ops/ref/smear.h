#pragma once

#include "ops/ref/scalar.h"
#include "ops/smear.h"

namespace thimble::ref {

struct SmearRef {
  using View = Smear;

  template <class T>
  static void forward(const Smear& op) {
    for (std::int64_t n = 0; n < op.y.rows; ++n) {
      const std::int32_t before = *op.previous.row<std::int32_t>(n);
      for (std::int64_t c = 0; c < op.y.cols; ++c) {
        const T g = sigmoid(op.gate.row<T>(0)[c]);
        const T previous = before < 0 ? T(0) : op.x.row<T>(before)[c];
        op.y.row<T>(n)[c] = (T(1) - g) * op.x.row<T>(n)[c] + g * previous;
      }
    }
  }

  template <class T>
  static void backward(const Smear& op) {
    const std::int64_t N = op.dy.rows, C = op.dy.cols;
    for (std::int64_t c = 0; c < C; ++c) {
      const T g = sigmoid(op.gate.row<T>(0)[c]);
      T dg = 0;
      for (std::int64_t n = 0; n < N; ++n) {
        const T dy = op.dy.row<T>(n)[c];
        const std::int32_t before = *op.previous.row<std::int32_t>(n);
        const T previous = before < 0 ? T(0) : op.x.row<T>(before)[c];
        dg += dy * (previous - op.x.row<T>(n)[c]);
        if (!op.dx) continue;
        T dx = (T(1) - g) * dy;
        if (n + 1 < N && *op.previous.row<std::int32_t>(n + 1) == n) dx += g * op.dy.row<T>(n + 1)[c];
        store(op.dx.row<T>(n)[c], dx, op.add_dx);
      }
      if (op.dgate) op.dgate.row<T>(0)[c] += g * (T(1) - g) * dg;
    }
  }
};

}  // namespace thimble::ref
