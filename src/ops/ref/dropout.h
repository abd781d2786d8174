#pragma once

#include "base/rng.h"
#include "ops/dropout.h"
#include "ops/ref/scalar.h"

namespace thimble::ref {

struct DropoutRef {
  using View = Dropout;

  template <class T>
  static void forward(const Dropout& op) {
    for (std::int64_t n = 0; n < op.y.rows; ++n)
      for (std::int64_t c = 0; c < op.y.cols; ++c)
        op.y.row<T>(n)[c] = op.x.row<T>(n)[c] * mask<T>(op, n * op.y.cols + c);
  }

  template <class T>
  static void backward(const Dropout& op) {
    for (std::int64_t n = 0; n < op.dy.rows; ++n)
      for (std::int64_t c = 0; c < op.dy.cols; ++c)
        store(op.dx.row<T>(n)[c], op.dy.row<T>(n)[c] * mask<T>(op, n * op.dy.cols + c), op.add_dx);
  }

 private:
  template <class T>
  static T mask(const Dropout& op, std::int64_t element) {
    const auto place = static_cast<std::uint64_t>(element);
    const std::uint32_t word = philox(op.seed_value(), op.at.stream, place / 4)[place % 4];
    return word < dropout_threshold(op.at.p) ? T(0) : T(1) / (T(1) - T(op.at.p));
  }
};

}  // namespace thimble::ref
