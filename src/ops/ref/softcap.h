#pragma once

#include "ops/ref/scalar.h"
#include "ops/softcap.h"

namespace thimble::ref {

struct SoftcapRef {
  using View = Softcap;

  template <class T>
  static void forward(const Softcap& op) {
    for (std::int64_t n = 0; n < op.y.rows; ++n)
      for (std::int64_t v = 0; v < op.y.cols; ++v)
        op.y.row<T>(n)[v] = T(op.cap) * std::tanh(op.x.row<T>(n)[v] / T(op.cap));
  }

  template <class T>
  static void backward(const Softcap& op) {
    for (std::int64_t n = 0; n < op.dy.rows; ++n)
      for (std::int64_t v = 0; v < op.dy.cols; ++v) {
        const T t = op.y.row<T>(n)[v] / T(op.cap);
        store(op.dx.row<T>(n)[v], op.dy.row<T>(n)[v] * (T(1) - t * t), op.add_dx);
      }
  }
};

}  // namespace thimble::ref
