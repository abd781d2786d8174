#include "ops/elementwise.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "base/rng.h"
#include "ops/definition.h"

namespace thimble {

namespace {

std::vector<Shape> activation_shapes(std::span<const Shape> in, const Attributes& attributes) {
  const ShapeCheck c("activation", in, 1, 1);
  Shape x = c.rows(0, "x");
  const auto kind = attributes.as<ActivationAttributes>().kind;
  check(kind >= ActivationKind::relu && kind <= ActivationKind::geglu, "[activation] unknown kind {}",
        static_cast<int>(kind));
  if (!is_gated(kind)) return {x};
  check(x.cols % 2 == 0, "[activation] swiglu and geglu split their input into two halves, got {} columns",
        x.cols);
  x.cols /= 2;
  return {x};
}

std::vector<Shape> dropout_shapes(std::span<const Shape> in, const Attributes& attributes) {
  const ShapeCheck c("dropout", in, 2, 2);
  const float p = attributes.as<DropoutAttributes>().p;
  check(p >= 0 && p < 1, "[dropout] p must be at least 0 and below 1, got {}", p);
  c.integers(1, "seed", 2);
  return {c.rows(0, "x")};
}

struct ActivationFormula {
  using View = Activation;

  template <class T>
  static void forward(const Activation& op) {
    const std::int64_t F = op.y.cols;
    for (std::int64_t n = 0; n < op.y.rows; ++n)
      for (std::int64_t f = 0; f < F; ++f) {
        const T x = op.x.row<T>(n)[f];
        op.y.row<T>(n)[f] = value(op.kind, x) * (is_gated(op.kind) ? op.x.row<T>(n)[F + f] : T(1));
      }
  }

  template <class T>
  static void backward(const Activation& op) {
    const std::int64_t F = op.dy.cols;
    for (std::int64_t n = 0; n < op.dy.rows; ++n)
      for (std::int64_t f = 0; f < F; ++f) {
        const T x = op.x.row<T>(n)[f], dy = op.dy.row<T>(n)[f];
        T* dx = op.dx.row<T>(n);
        const T up = is_gated(op.kind) ? op.x.row<T>(n)[F + f] : T(1);
        store(dx[f], dy * up * slope(op.kind, x), op.add_dx);
        if (is_gated(op.kind)) store(dx[F + f], dy * value(op.kind, x), op.add_dx);
      }
  }

 private:
  // `<= 0` is false for NaN, which therefore propagates.
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
      case ActivationKind::swiglu:
        return x * sigmoid(x);
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
      case ActivationKind::swiglu: {
        const T s = sigmoid(x);
        return s * (T(1) + x * (T(1) - s));
      }
      default: {
        const T t = std::tanh(T(kGeluInner) * (x + T(kGeluCubic) * x * x * x));
        const T inner = T(kGeluInner) * (T(1) + T(3 * kGeluCubic) * x * x);
        return T(0.5) * (T(1) + t) + T(0.5) * x * (T(1) - t * t) * inner;
      }
    }
  }
};

struct DropoutFormula {
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
    const auto index = static_cast<std::uint64_t>(element);
    const std::uint32_t word = philox(op.seed_value(), op.at.stream, index / 4)[index % 4];
    return word < dropout_threshold(op.at.p) ? T(0) : T(1) / (T(1) - T(op.at.p));
  }
};

}  // namespace

constinit const OpDefinition op::kActivation = {.name = "activation",
                                                .inputs = {{{"x", is::differentiable | is::saved}}},
                                                .outputs = {{{.name = "y"}}},
                                                .shapes = activation_shapes,
                                                .reference = &reference_kernels<ActivationFormula>,
                                                .cpu = &cpu::kActivation};

constinit const OpDefinition op::kDropout = {.name = "dropout",
                                             .inputs = {{{"x", is::differentiable}, {"seed", is::saved}}},
                                             .outputs = {{{.name = "y"}}},
                                             .shapes = dropout_shapes,
                                             .reference = &reference_kernels<DropoutFormula>,
                                             .cpu = &cpu::kDropout};

Value op::activation(Tape& tape, Value x, ActivationKind kind) {
  return tape.record(op::kActivation, {x}, ActivationAttributes{kind})[0];
}

Value op::dropout(Tape& tape, Value x, Value seed, float p) {
  return tape.record(op::kDropout, {x, seed}, DropoutAttributes{p, tape.next_dropout_stream()})[0];
}

}  // namespace thimble
