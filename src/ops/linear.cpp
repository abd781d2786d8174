#include "ops/linear.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "ops/definition.h"

namespace thimble {

namespace {

std::vector<Shape> linear_shapes(std::span<const Shape> in, const Attributes&) {
  const ShapeCheck c("linear", in, 2, 4);
  const Shape& x = c.rows(0, "x");
  const Shape& w = c.matrix(1, "weight", x.dtype, 3);
  check(w.cols == x.cols, "[linear] weight has {} columns, input rows have {}", w.cols, x.cols);
  c.optional_vector(2, "bias", w.rows);
  return {{x.rows, w.rows, x.dtype}};
}

struct LinearFormula {
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

double linear_flops(const OpCall& call) {
  const Linear op(call);
  const double product = product_flops(op.x, op.w);
  return call.backward() ? product * ((op.dx ? 1 : 0) + (op.dw ? 1 : 0)) : product;
}

}  // namespace

constinit const OpDefinition op::kLinear = {
    .name = "linear",
    .inputs = {{{"x", is::differentiable | is::saved},
                {"weight", is::differentiable | is::parameter | is::saved},
                {"bias", is::differentiable | is::parameter},
                {"scales", is::saved}}},
    .outputs = {{{.name = "y"}}},
    .shapes = linear_shapes,
    .reference = &reference_kernels<LinearFormula>,
    .cpu = &cpu::kLinear,
    .flops = linear_flops,
    .multiplied_input = 1};

Value op::linear(Tape& tape, Value x, Value weight, Value bias, bool invariant, Value scales) {
  return tape.record(op::kLinear, {x, weight, bias, scales}, LinearAttributes{invariant})[0];
}

}  // namespace thimble
