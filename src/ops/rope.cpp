#include "ops/rope.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "ops/definition.h"

namespace thimble {

namespace {

std::vector<Shape> rope_shapes(std::span<const Shape> in, const Attributes& attributes) {
  const auto at = attributes.as<RopeAttributes>();
  const ShapeCheck c("rope", in, 3, 5);
  const Shape& x = c.rows(0, "x");
  check(at.heads > 0 && x.cols % at.heads == 0, "[rope] width ({}) must be divisible by heads ({})", x.cols,
        at.heads);
  const std::int64_t size = x.cols / at.heads;
  c.integers(1, "position", x.rows);
  const Shape& rotations = c.full(2, "rotations");
  check(rotations.cols % 2 == 0 && rotations.cols <= size,
        "[rope] {} columns to rotate: expected an even number, at most the head size {}", rotations.cols,
        size);
  if (c.has(3)) {
    const Shape& gain = c.full(3, "gain");
    check(gain.rows == 1 && (gain.cols == 1 || gain.cols == at.heads),
          "[rope] expected gain [1, 1] or [1, {}], got {}", at.heads, gain.text());
  }
  c.optional_vector(4, "weight", size);
  check(at.norm || !c.has(4), "[rope] a norm weight is given, but the norm is off");
  check(at.eps >= 0, "[rope] eps must not be negative, got {}", at.eps);
  return {x, statistic(x, at.norm ? at.heads : 1)};
}

struct RopeFormula {
  using View = Rope;

  template <class T>
  static void forward(const Rope& op) {
    const std::int64_t D = op.x.cols / op.at.heads;
    for (std::int64_t n = 0; n < op.x.rows; ++n)
      for (std::int64_t h = 0; h < op.at.heads; ++h) {
        const T* x = op.x.row<T>(n) + h * D;
        T rstd = 1;
        if (op.at.norm) {
          T squares = 0;
          for (std::int64_t d = 0; d < D; ++d) squares += x[d] * x[d];
          rstd = T(1) / std::sqrt(squares / T(D) + T(op.at.eps));
        }
        if (op.at.norm || h == 0) op.rstd.row<T>(n)[h] = rstd;
        const std::vector<T> rotated = rotate(op, n, normed(op, x, rstd), 1);
        for (std::int64_t d = 0; d < D; ++d)
          op.y.row<T>(n)[h * D + d] = gain_of<T>(op, h) * rotated[static_cast<std::size_t>(d)];
      }
  }

  template <class T>
  static void backward(const Rope& op) {
    const std::int64_t D = op.x.cols / op.at.heads;
    for (std::int64_t n = 0; n < op.x.rows; ++n)
      for (std::int64_t h = 0; h < op.at.heads; ++h) {
        const T* x = op.x.row<T>(n) + h * D;
        const T* dy = op.dy.row<T>(n) + h * D;
        const T rstd = op.at.norm ? op.rstd.row<T>(n)[h] : T(1);
        const std::vector<T> rotated = rotate(op, n, normed(op, x, rstd), 1);
        std::vector<T> u(static_cast<std::size_t>(D));
        T dgain = 0;
        for (std::size_t d = 0; d < u.size(); ++d)
          u[d] = dy[d] * gain_of<T>(op, h), dgain += dy[d] * rotated[d];
        if (op.dgain) op.dgain.row<T>(0)[op.dgain.cols == 1 ? 0 : h] += dgain;

        u = rotate(op, n, u, -1);
        T mean = 0;
        for (std::size_t d = 0; d < u.size(); ++d) {
          if (op.dw) op.dw.row<T>(0)[d] += u[d] * x[d] * rstd;
          u[d] *= op.w ? op.w.row<T>(0)[d] : T(1);
          mean += u[d] * x[d] * rstd / T(D);
        }
        for (std::size_t d = 0; op.dx && d < u.size(); ++d)
          store(op.dx.row<T>(n)[h * D + static_cast<std::int64_t>(d)],
                op.at.norm ? rstd * (u[d] - x[d] * rstd * mean) : u[d], op.add_dx);
      }
  }

 private:
  template <class T>
  static T gain_of(const Rope& op, std::int64_t h) {
    return scale_at(op.gain ? op.gain.row<T>(0) : nullptr, op.gain.cols, h);
  }

  template <class T>
  static std::vector<T> normed(const Rope& op, const T* x, T rstd) {
    std::vector<T> y(static_cast<std::size_t>(op.x.cols / op.at.heads));
    for (std::size_t d = 0; d < y.size(); ++d) y[d] = x[d] * rstd * (op.w ? op.w.row<T>(0)[d] : T(1));
    return y;
  }

  // direction -1 reverses direction +1.
  template <class T>
  static std::vector<T> rotate(const Rope& op, std::int64_t n, const std::vector<T>& x, int direction) {
    const auto half = static_cast<std::size_t>(op.rotations.cols / 2);
    const T* rotations = op.rotations.row<T>(*op.position.row<std::int32_t>(n));
    std::vector<T> y = x;
    for (std::size_t i = 0; i < half; ++i) {
      const T cosine = rotations[i], sine = T(direction) * rotations[i + half];
      y[i] = x[i] * cosine - x[i + half] * sine;
      y[i + half] = x[i] * sine + x[i + half] * cosine;
    }
    return y;
  }
};

}  // namespace

void fill_rotations(const Tensor& rotations, double base, int direction) {
  const std::int64_t pairs = rotations.cols / 2;
  std::vector<double> frequencies;
  for (std::int64_t i = 0; i < pairs; ++i)
    frequencies.push_back(std::pow(base, -static_cast<double>(i) / static_cast<double>(pairs)));
  fill_rotations(rotations, frequencies, direction);
}

void fill_rotations(const Tensor& rotations, std::span<const double> frequencies, int direction,
                    double factor) {
  const std::int64_t pairs = rotations.cols / 2;
  for (std::int64_t p = 0; p < rotations.rows; ++p)
    for (std::int64_t i = 0; i < pairs; ++i) {
      const double angle = static_cast<double>(p) * frequencies[static_cast<std::size_t>(i)];
      rotations.row<float>(p)[i] = static_cast<float>(factor * std::cos(angle));
      rotations.row<float>(p)[i + pairs] = static_cast<float>(factor * direction * std::sin(angle));
    }
}

constinit const OpDefinition op::kRope = {
    .name = "rope",
    .inputs = {{{"x", is::differentiable | is::saved},
                {"position", is::saved},
                {"table", is::saved},
                {"gain", is::differentiable | is::parameter | is::saved},
                {"weight", is::differentiable | is::parameter | is::saved}}},
    .outputs = {{{.name = "y"}, {.name = "rstd", .saved = true}}},
    .shapes = rope_shapes,
    .reference = &reference_kernels<RopeFormula>,
    .cpu = &cpu::kRope};

Value op::rope(Tape& tape, Value x, Value position, Value rotations, Value gain, Value weight, int heads,
               bool norm, float eps) {
  return tape.record(op::kRope, {x, position, rotations, gain, weight}, RopeAttributes{heads, norm, eps})[0];
}

}  // namespace thimble
