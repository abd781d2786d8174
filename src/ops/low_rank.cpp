#include "ops/low_rank.h"

#include <vector>

#include "base/error.h"
#include "ops/definition.h"

namespace thimble {

namespace {

std::vector<Shape> low_rank_shapes(std::span<const Shape> in, const Attributes& attributes) {
  const ShapeCheck c("low_rank", in, 3, 3);
  const auto at = attributes.as<LowRankAttributes>();
  const Shape& x = c.rows(0, "x");
  std::int64_t columns = 0, outputs = 0, adapters = 0;
  for (std::size_t p = 0; p < at.widths.size(); ++p) {
    const bool adapted = (at.adapted >> p & 1u) != 0;
    check(at.widths[p] >= 0 && (at.widths[p] > 0 || !adapted),
          "[low_rank] part {} has {} columns and an adapter", p, at.widths[p]);
    columns += at.widths[p];
    if (adapted) outputs += at.widths[p], ++adapters;
  }
  check(at.rank > 0 && adapters > 0 && at.adapted < 1u << at.widths.size(),
        "[low_rank] expected a rank and a part with an adapter, got rank {} and parts {:b}", at.rank,
        at.adapted);
  check(columns == x.cols, "[low_rank] the parts have {} columns, x has {}", columns, x.cols);
  c.rows(1, "h", x.rows, adapters * at.rank);
  c.rows(2, "weight", outputs, at.rank);
  return {x};
}

struct LowRankFormula {
  using View = LowRank;

  template <class T>
  static void forward(const LowRank& op) {
    for (std::int64_t n = 0; n < op.x.rows; ++n) {
      for (std::int64_t o = 0; o < op.x.cols; ++o) op.y.row<T>(n)[o] = op.x.row<T>(n)[o];
      op.each_part([&](std::int64_t column, std::int64_t count, std::int64_t h_column, std::int64_t row) {
        for (std::int64_t o = 0; o < count; ++o) {
          T sum = 0;
          for (std::int64_t r = 0; r < op.at.rank; ++r)
            sum += op.h.row<T>(n)[h_column + r] * op.w.row<T>(row + o)[r];
          op.y.row<T>(n)[column + o] += T(op.at.scale) * sum;
        }
      });
    }
  }

  template <class T>
  static void backward(const LowRank& op) {
    for (std::int64_t n = 0; n < op.dy.rows; ++n) {
      for (std::int64_t o = 0; op.dx && o < op.dy.cols; ++o)
        store(op.dx.row<T>(n)[o], op.dy.row<T>(n)[o], op.add_dx);
      op.each_part([&](std::int64_t column, std::int64_t count, std::int64_t h_column, std::int64_t row) {
        for (std::int64_t r = 0; r < op.at.rank; ++r) {
          T sum = 0;
          for (std::int64_t o = 0; o < count; ++o) {
            const T dy = T(op.at.scale) * op.dy.row<T>(n)[column + o];
            sum += dy * op.w.row<T>(row + o)[r];
            if (op.dw) op.dw.row<T>(row + o)[r] += dy * op.h.row<T>(n)[h_column + r];
          }
          if (op.dh) store(op.dh.row<T>(n)[h_column + r], sum, op.add_dh);
        }
      });
    }
  }
};

double low_rank_flops(const OpCall& call) {
  const LowRank op(call);
  const double product = product_flops(op.h, op.w);  // each row of w is multiplied by one part of h
  return call.backward() ? product * ((op.dh ? 1 : 0) + (op.dw ? 1 : 0)) : product;
}

}  // namespace

constinit const OpDefinition op::kLowRank = {
    .name = "low_rank",
    .inputs = {{{"x", is::differentiable | is::passes_gradient},
                {"h", is::differentiable | is::saved},
                {"weight", is::differentiable | is::parameter | is::saved}}},
    .outputs = {{{.name = "y"}}},
    .shapes = low_rank_shapes,
    .reference = &reference_kernels<LowRankFormula>,
    .cpu = &cpu::kLowRank,
    .flops = low_rank_flops};

Value op::low_rank(Tape& tape, Value x, Value h, Value weight, const LowRankAttributes& attributes) {
  return tape.record(op::kLowRank, {x, h, weight}, attributes)[0];
}

}  // namespace thimble
