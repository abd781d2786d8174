#pragma once

#include "ops/linear.h"
#include "ops/ref/scalar.h"

namespace thimble::ref {

struct LinearRef {
  using View = Linear;

  template <class T>
  static void forward(const Linear& op) {
    for (std::int64_t n = 0; n < op.x.rows; ++n)
      for (std::int64_t o = 0; o < op.w.rows; ++o) {
        T sum = op.b ? op.b.row<T>(0)[o] : T(0);
        for (std::int64_t i = 0; i < op.x.cols; ++i) sum += op.x.row<T>(n)[i] * op.w.row<T>(o)[i];
        op.y.row<T>(n)[o] = sum;
      }
  }

  template <class T>
  static void backward(const Linear& op) {
    const std::int64_t N = op.x.rows, I = op.x.cols, O = op.w.rows;
    for (std::int64_t n = 0; op.dx && n < N; ++n)
      for (std::int64_t i = 0; i < I; ++i) {
        T sum = 0;
        for (std::int64_t o = 0; o < O; ++o) sum += op.dy.row<T>(n)[o] * op.w.row<T>(o)[i];
        store(op.dx.row<T>(n)[i], sum, op.add_dx);
      }
    for (std::int64_t o = 0; o < O; ++o)
      for (std::int64_t n = 0; n < N; ++n) {
        const T dy = op.dy.row<T>(n)[o];
        if (op.db) op.db.row<T>(0)[o] += dy;
        for (std::int64_t i = 0; op.dw && i < I; ++i) op.dw.row<T>(o)[i] += dy * op.x.row<T>(n)[i];
      }
  }
};

}  // namespace thimble::ref
