#pragma once

#include "ops/activation.h"
#include "ops/ref/scalar.h"

namespace thimble::ref {

struct ActivationRef {
  using View = Activation;

  template <class T>
  static void forward(const Activation& op) {
    const std::int64_t F = op.y.cols;
    for (std::int64_t n = 0; n < op.y.rows; ++n)
      for (std::int64_t f = 0; f < F; ++f) {
        const T x = op.x.row<T>(n)[f];
        op.y.row<T>(n)[f] =
            op.kind == ActivationKind::swiglu ? x * sigmoid(x) * op.x.row<T>(n)[F + f] : value(op.kind, x);
      }
  }

  template <class T>
  static void backward(const Activation& op) {
    const std::int64_t F = op.dy.cols;
    for (std::int64_t n = 0; n < op.dy.rows; ++n)
      for (std::int64_t f = 0; f < F; ++f) {
        const T x = op.x.row<T>(n)[f], dy = op.dy.row<T>(n)[f];
        T* dx = op.dx.row<T>(n);
        if (op.kind != ActivationKind::swiglu) {
          store(dx[f], dy * slope(op.kind, x), op.add_dx);
          continue;
        }
        const T s = sigmoid(x);
        store(dx[f], dy * op.x.row<T>(n)[F + f] * s * (T(1) + x * (T(1) - s)), op.add_dx);
        store(dx[F + f], dy * x * s, op.add_dx);
      }
  }

 private:
  // Written so that a NaN, which is neither above nor below zero, comes through.
  template <class T>
  static T value(ActivationKind kind, T x) {
    const bool negative = real_part(x) <= 0;
    switch (kind) {
      case ActivationKind::relu:
        return negative ? T(0) : x;
      case ActivationKind::relu2:
        return negative ? T(0) : x * x;
      case ActivationKind::leaky_relu2:
        return negative ? x * x * T(0.25) : x * x;
      default:
        return T(0.5) * x * (T(1) + std::tanh(T(kGeluInner) * (x + T(kGeluCubic) * x * x * x)));
    }
  }

  template <class T>
  static T slope(ActivationKind kind, T x) {
    const bool negative = real_part(x) <= 0;
    switch (kind) {
      case ActivationKind::relu:
        return negative ? T(0) : real_part(x) > 0 ? T(1) : x;
      case ActivationKind::relu2:
        return negative ? T(0) : T(2) * x;
      case ActivationKind::leaky_relu2:
        return negative ? T(0.5) * x : T(2) * x;
      default: {
        const T t = std::tanh(T(kGeluInner) * (x + T(kGeluCubic) * x * x * x));
        const T inner = T(kGeluInner) * (T(1) + T(3 * kGeluCubic) * x * x);
        return T(0.5) * (T(1) + t) + T(0.5) * x * (T(1) - t * t) * inner;
      }
    }
  }
};

}  // namespace thimble::ref
