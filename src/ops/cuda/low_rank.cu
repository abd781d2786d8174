// low_rank: one product for each adapted part, which adds x.
#include "ops/low_rank.h"

#include "ops/cuda/gemm.h"
#include "ops/cuda/rows.cuh"

namespace thimble::cuda {

namespace {

template <int V>
void copy_rows(cudaStream_t stream, const Tensor& from, const Tensor& to, bool add) {
  const View a(from), b(to);
  for_each_pack<V>("low_rank", stream, to.rows, to.cols, [=] __device__(std::int64_t row, int c) {
    float values[V];
    load(a, row, c, values);
    put(b, row, c, values, add);
  });
}

// to = from, or to += from.
void copy(const Context& context, const Tensor& from, const Tensor& to, bool add) {
  if (vectorized(from, {to}))
    copy_rows<kVector>(stream_of(context), from, to, add);
  else
    copy_rows<1>(stream_of(context), from, to, add);
}

// The columns of x that no product writes; all of them if x cannot be the base of a product.
void copy_x(const Context& context, const LowRank& op, bool all) {
  if (all) return copy(context, op.x, op.y, false);
  std::int64_t column = 0;
  for (std::size_t p = 0; p < op.at.widths.size(); column += op.at.widths[p++])
    if ((op.at.adapted >> p & 1u) == 0 && op.at.widths[p] > 0)
      copy(context, op.x.columns(column, op.at.widths[p]), op.y.columns(column, op.at.widths[p]), false);
}

void low_rank_forward(const Context& context, const OpCall& call) {
  const LowRank op(call);
  if (op.y.count() == 0) return;
  const bool all = op.x.stride != op.y.stride;  // base and result of a product have one layout
  copy_x(context, op, all);
  op.each_part([&](std::int64_t column, std::int64_t count, std::int64_t h_column, std::int64_t row) {
    const Tensor y = op.y.columns(column, count);
    const Product product{.a = {op.h.columns(h_column, op.at.rank)},
                          .b = transposed(op.w.row_range(row, count)),
                          .base = all ? y : op.x.columns(column, count),
                          .result = y,
                          .scale = op.at.scale,
                          .base_scale = 1};
    op.x.rows <= kFewRows ? plain_gemm(context, product) : gemm(context, product);
  });
}

void low_rank_backward(const Context& context, const OpCall& call) {
  const LowRank op(call);
  if (op.dy.count() == 0) return;
  // Where nothing else adds to dx, it has the memory of dy.
  if (op.dx && op.dx.data != op.dy.data) copy(context, op.dy, op.dx, op.add_dx);
  op.each_part([&](std::int64_t column, std::int64_t count, std::int64_t h_column, std::int64_t row) {
    const Tensor dy = op.dy.columns(column, count);
    const auto add_product = [&](const Operand& a, const Operand& b, const Tensor& to, bool add) {
      gemm(context,
           {.a = a, .b = b, .base = to, .result = to, .scale = op.at.scale, .base_scale = add ? 1.0f : 0.0f});
    };
    if (op.dh)
      add_product({dy}, {op.w.row_range(row, count)}, op.dh.columns(h_column, op.at.rank), op.add_dh);
    if (op.dw)
      add_product(transposed(dy), {op.h.columns(h_column, op.at.rank)}, op.dw.row_range(row, count), true);
  });
}

}  // namespace

extern const PluginOp kLowRank = {
    "low_rank", {.forward = low_rank_forward, .backward = low_rank_backward, .rows = kRowTypes}};

}  // namespace thimble::cuda
