#include "ops/smear.h"

#include "ops/cuda/column_sums.cuh"
#include "ops/cuda/kernels.h"

namespace thimble::cuda {

namespace {

__device__ float sigmoid(float x) {
  return 1 / (1 + expf(-x));
}

template <int V>
void forward(cudaStream_t stream, const Smear& op) {
  const View x(op.x), gate(op.gate), y(op.y);
  const Ints previous(op.previous);
  for_each_pack<V>("smear", stream, op.y.rows, op.y.cols, [=] __device__(std::int64_t row, int c) {
    const std::int32_t before = previous[row];
    float a[V], b[V] = {}, g[V];
    load(x, row, c, a);
    if (before >= 0) load(x, before, c, b);
    load(gate, 0, c, g);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const float share = sigmoid(g[i]);
      a[i] = (1 - share) * a[i] + share * b[i];
    }
    store(y, row, c, a);
  });
}

template <int V>
void backward(cudaStream_t stream, const Smear& op, void* scratch) {
  const View x(op.x), gate(op.gate), dy(op.dy), dx(op.dx);
  const Ints previous(op.previous);
  const bool add = op.add_dx;
  const std::int64_t rows = op.dy.rows;
  if (op.dx)
    for_each_pack<V>("smear backward", stream, rows, op.dy.cols, [=] __device__(std::int64_t row, int c) {
      const bool followed = row + 1 < rows && previous[row + 1] == row;
      float d[V], next[V] = {}, g[V];
      load(dy, row, c, d);
      if (followed) load(dy, row + 1, c, next);
      load(gate, 0, c, g);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const float share = sigmoid(g[i]);
        d[i] = (1 - share) * d[i] + (followed ? share * next[i] : 0.0f);
      }
      put(dx, row, c, d, add);
    });
  if (op.dgate)
    add_column_sums<V, 1>("smear gate", stream, rows, op.dy.cols, scratch, {{View(op.dgate)}},
                          [=] __device__(std::int64_t row, int c, float(&sums)[1][V]) {
                            const std::int32_t before = previous[row];
                            float d[V], a[V], b[V] = {}, g[V];
                            load(dy, row, c, d);
                            load(x, row, c, a);
                            if (before >= 0) load(x, before, c, b);
                            load(gate, 0, c, g);
#pragma unroll
                            for (int i = 0; i < V; ++i) {
                              const float share = sigmoid(g[i]);
                              sums[0][i] += share * (1 - share) * d[i] * (b[i] - a[i]);
                            }
                          });
}

}  // namespace

void smear_forward(const Context& context, const OpCall& call) {
  const Smear op(call);
  if (vectorised(op.x, {op.gate, op.y}))
    forward<kVector>(stream_of(context), op);
  else
    forward<1>(stream_of(context), op);
}

void smear_backward(const Context& context, const OpCall& call) {
  const Smear op(call);
  if (vectorised(op.x, {op.gate, op.dy, op.dx}))
    backward<kVector>(stream_of(context), op, call.scratch.data);
  else
    backward<1>(stream_of(context), op, call.scratch.data);
}

}  // namespace thimble::cuda
