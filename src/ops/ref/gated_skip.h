#pragma once

#include "ops/gated_skip.h"
#include "ops/ref/scalar.h"

namespace thimble::ref {

struct GatedSkipRef {
  using View = GatedSkip;

  template <class T>
  static void forward(const GatedSkip& op) {
    for (std::int64_t n = 0; n < op.y.rows; ++n)
      for (std::int64_t c = 0; c < op.y.cols; ++c) {
        const T g = sigmoid(op.gate.row<T>(0)[c]);
        op.y.row<T>(n)[c] = g * op.x.row<T>(n)[c] + (T(1) - g) * op.w.row<T>(0)[c] * op.skip.row<T>(n)[c];
      }
  }

  template <class T>
  static void backward(const GatedSkip& op) {
    for (std::int64_t n = 0; n < op.dy.rows; ++n)
      for (std::int64_t c = 0; c < op.dy.cols; ++c) {
        const T g = sigmoid(op.gate.row<T>(0)[c]), w = op.w.row<T>(0)[c], dy = op.dy.row<T>(n)[c];
        const T x = op.x.row<T>(n)[c], skip = op.skip.row<T>(n)[c];
        if (op.dx) store(op.dx.row<T>(n)[c], g * dy, op.add_dx);
        if (op.dskip) store(op.dskip.row<T>(n)[c], (T(1) - g) * w * dy, op.add_dskip);
        if (op.dw) op.dw.row<T>(0)[c] += (T(1) - g) * dy * skip;
        if (op.dgate) op.dgate.row<T>(0)[c] += g * (T(1) - g) * dy * (x - w * skip);
      }
  }
};

}  // namespace thimble::ref
