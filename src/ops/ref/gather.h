#pragma once

#include "ops/gather.h"
#include "ops/ref/scalar.h"

namespace thimble::ref {

struct GatherRef {
  using View = Gather;

  template <class T>
  static void forward(const Gather& op) {
    for (std::int64_t m = 0; m < op.y.rows; ++m)
      for (std::int64_t c = 0; c < op.y.cols; ++c)
        op.y.row<T>(m)[c] = op.x.row<T>(*op.row.row<std::int32_t>(m))[c];
  }

  template <class T>
  static void backward(const Gather& op) {
    if (!op.add_dx) fill_zero(op.dx);
    for (std::int64_t m = 0; m < op.dy.rows; ++m)
      for (std::int64_t c = 0; c < op.dy.cols; ++c)
        op.dx.row<T>(*op.row.row<std::int32_t>(m))[c] += op.dy.row<T>(m)[c];
  }
};

}  // namespace thimble::ref
