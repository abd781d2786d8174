#include "ops/head_loss.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "ops/definition.h"

namespace thimble {

namespace {

std::vector<Shape> head_loss_shapes(std::span<const Shape> in, const Attributes& attributes) {
  const auto at = attributes.as<HeadLossAttributes>();
  const ShapeCheck c("head_loss", in, 4, 5);
  const Shape& x = c.rows(0, "x");
  const Shape& w = c.matrix(1, "weight", x.dtype, 4);
  check(w.cols == x.cols, "[head_loss] expected weight of width {}, got {}", x.cols, w.cols);
  c.integers(2, "target", x.rows);
  c.full(3, "row weight", x.rows, 1);
  check(at.cap >= 0, "[head_loss] logit_softcap must not be negative, got {}", at.cap);
  check(at.chunk_rows > 0, "[head_loss] chunk_rows must be positive, got {}", at.chunk_rows);
  return {statistic(x)};
}

std::vector<Shape> softcap_shapes(std::span<const Shape> in, const Attributes& attributes) {
  const ShapeCheck c("softcap", in, 1, 1);
  const float cap = attributes.as<SoftcapAttributes>().cap;
  check(cap > 0, "[softcap] cap must be positive, got {}", cap);
  return {c.rows(0, "x")};
}

struct HeadLossFormula {
  using View = HeadLoss;

  template <class T>
  static void forward(const HeadLoss& op) {
    for (std::int64_t n = 0; n < op.x.rows; ++n) {
      const std::int32_t target = *op.target.row<std::int32_t>(n);
      const std::vector<T> l = logits<T>(op, n);
      *op.nats.row<T>(n) = target < 0 ? T(0) : log_sum_exp(l) - l[static_cast<std::size_t>(target)];
    }
  }

  template <class T>
  static void backward(const HeadLoss& op) {
    if (op.dx && !op.add_dx) fill_zero(op.dx);
    forward<T>(op);
    for (std::int64_t n = 0; n < op.x.rows; ++n) {
      const std::int32_t target = *op.target.row<std::int32_t>(n);
      if (target < 0) continue;
      const std::vector<T> l = logits<T>(op, n);
      const T lse = log_sum_exp(l);
      for (std::size_t v = 0; v < l.size(); ++v) {
        const T t = op.at.cap > 0 ? l[v] / T(op.at.cap) : T(0);
        const T onehot = v == static_cast<std::size_t>(target) ? T(1) : T(0);
        const T dz = *op.weight.row<T>(n) * (std::exp(l[v] - lse) - onehot) * (T(1) - t * t);
        for (std::int64_t c = 0; c < op.x.cols; ++c) {
          if (op.dx) op.dx.row<T>(n)[c] += dz * op.w.row<T>(static_cast<std::int64_t>(v))[c];
          if (op.dw) op.dw.row<T>(static_cast<std::int64_t>(v))[c] += dz * op.x.row<T>(n)[c];
        }
      }
    }
  }

 private:
  template <class T>
  static std::vector<T> logits(const HeadLoss& op, std::int64_t n) {
    std::vector<T> l(static_cast<std::size_t>(op.w.rows));
    for (std::size_t v = 0; v < l.size(); ++v) {
      for (std::int64_t c = 0; c < op.x.cols; ++c)
        l[v] += op.x.row<T>(n)[c] * op.w.row<T>(static_cast<std::int64_t>(v))[c];
      if (op.at.cap > 0) l[v] = T(op.at.cap) * std::tanh(l[v] / T(op.at.cap));
    }
    return l;
  }

  template <class T>
  static T log_sum_exp(const std::vector<T>& l) {
    auto highest = real_part(l[0]);
    for (T value : l) highest = std::max(highest, real_part(value));
    T sum = 0;
    for (T value : l) sum += std::exp(value - T(highest));
    return std::log(sum) + T(highest);
  }
};

struct SoftcapFormula {
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

double head_loss_flops(const OpCall& call) {
  const HeadLoss op(call);
  return product_flops(op.x, op.w) * (call.backward() ? 1 + (op.dx ? 1 : 0) + (op.dw ? 1 : 0) : 1);
}

}  // namespace

constinit const OpDefinition op::kHeadLoss = {
    .name = "head_loss",
    .inputs = {{{"x", is::differentiable | is::saved},
                {"weight", is::differentiable | is::parameter | is::saved},
                {"target", is::saved},
                {"row weight", is::saved},
                {"scales", is::saved}}},
    .outputs = {{{.name = "nats"}}},
    .shapes = head_loss_shapes,
    .reference = &reference_kernels<HeadLossFormula>,
    .cpu = &cpu::kHeadLoss,
    .flops = head_loss_flops,
    .multiplied_input = 1,
    .loss = true};

constinit const OpDefinition op::kSoftcap = {.name = "softcap",
                                             .inputs = {{{"x", is::differentiable}}},
                                             .outputs = {{{.name = "y", .saved = true}}},
                                             .shapes = softcap_shapes,
                                             .reference = &reference_kernels<SoftcapFormula>,
                                             .cpu = &cpu::kSoftcap};

Value op::head_loss(Tape& tape, Value x, Value weight, Value target, Value row_weight, float cap,
                    int chunk_rows, Value scales) {
  return tape.record(op::kHeadLoss, {x, weight, target, row_weight, scales},
                     HeadLossAttributes{cap, chunk_rows})[0];
}

Value op::softcap(Tape& tape, Value x, float cap) {
  return tape.record(op::kSoftcap, {x}, SoftcapAttributes{cap})[0];
}

}  // namespace thimble
