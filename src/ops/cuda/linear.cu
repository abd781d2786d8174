#include "ops/linear.h"

#include "ops/cuda/column_sums.cuh"
#include "ops/cuda/gemm.h"
#include "ops/cuda/kernels.h"
#include "ops/cuda/linear_rows.h"
#include "ops/cuda/scratch.h"

namespace thimble::cuda {

namespace {

template <int V>
void add_bias(cudaStream_t stream, const Tensor& sums, const Tensor& bias, const Tensor& out) {
  const View from(sums), b(bias), y(out);
  for_each_pack<V>("linear bias", stream, out.rows, out.cols, [=] __device__(std::int64_t row, int c) {
    float a[V];
    load(from, row, c, a);
    float shift[V];
    load(b, 0, c, shift);
#pragma unroll
    for (int i = 0; i < V; ++i) a[i] += shift[i];
    store(y, row, c, a);
  });
}

void product(const Context& context, const Linear& op, const Tensor& x, const Tensor& y) {
  if (op.at.invariant && x.dtype == DType::f32)
    plain_gemm(context, {x}, transposed(op.w), y, false);
  else
    gemm(context, {x}, transposed(op.w), y, false);
}

// The products in f32, some rows at a time, so that a result of 16 bits is rounded once, with its bias.
void with_bias(const Context& context, const Linear& op, void* scratch) {
  const std::int64_t chunk = linear_bias_rows(op.x.rows);
  for (std::int64_t first = 0; first < op.x.rows; first += chunk) {
    const std::int64_t rows = first + chunk < op.x.rows ? chunk : op.x.rows - first;
    const Tensor sums{scratch, rows, op.w.rows, op.w.rows, DType::f32, Device::cuda},
        y = op.y.row_range(first, rows);
    product(context, op, op.x.row_range(first, rows), sums);
    if (vectorised(sums, {op.b, y}))
      add_bias<kVector>(stream_of(context), sums, op.b, y);
    else
      add_bias<1>(stream_of(context), sums, op.b, y);
  }
}

template <int V>
void bias_gradient(cudaStream_t stream, const Linear& op, void* scratch) {
  const View dy(op.dy);
  add_column_sums<V, 1>("linear bias", stream, op.dy.rows, op.dy.cols, scratch, {{View(op.db)}},
                        [=] __device__(std::int64_t row, int c, float(&sums)[1][V]) {
                          float g[V];
                          load(dy, row, c, g);
#pragma unroll
                          for (int i = 0; i < V; ++i) sums[0][i] += g[i];
                        });
}

}  // namespace

void linear_forward(const Context& context, const OpCall& call) {
  const Linear op(call);
  if (op.at.invariant && takes_linear_rows(op)) return linear_rows(context, op);
  if (op.b) return with_bias(context, op, call.scratch.data);
  product(context, op, op.x, op.y);
}

void linear_backward(const Context& context, const OpCall& call) {
  const Linear op(call);
  if (op.dx) gemm(context, {op.dy}, {op.w}, op.dx, op.add_dx);
  if (op.dw) gemm(context, transposed(op.dy), {op.x}, op.dw, true);
  if (!op.db) return;
  if (vectorised(op.dy, {}))
    bias_gradient<kVector>(stream_of(context), op, call.scratch.data);
  else
    bias_gradient<1>(stream_of(context), op, call.scratch.data);
}

}  // namespace thimble::cuda
