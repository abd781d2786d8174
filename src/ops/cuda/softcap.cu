#include "ops/softcap.h"

#include "ops/cuda/kernels.h"
#include "ops/cuda/rows.cuh"

namespace thimble::cuda {

namespace {

template <int V>
void forward(cudaStream_t stream, const Softcap& op) {
  const View x(op.x), y(op.y);
  const float cap = op.cap;
  for_each_pack<V>("softcap", stream, op.y.rows, op.y.cols, [=] __device__(std::int64_t row, int c) {
    float a[V];
    load(x, row, c, a);
#pragma unroll
    for (int i = 0; i < V; ++i) a[i] = cap * tanhf(a[i] / cap);
    store(y, row, c, a);
  });
}

template <int V>
void backward(cudaStream_t stream, const Softcap& op) {
  const View y(op.y), dy(op.dy), dx(op.dx);
  const float cap = op.cap;
  const bool add = op.add_dx;
  for_each_pack<V>("softcap backward", stream, op.dy.rows, op.dy.cols,
                   [=] __device__(std::int64_t row, int c) {
                     float a[V], g[V];
                     load(y, row, c, a);
                     load(dy, row, c, g);
#pragma unroll
                     for (int i = 0; i < V; ++i) {
                       const float t = a[i] / cap;
                       g[i] *= 1 - t * t;
                     }
                     put(dx, row, c, g, add);
                   });
}

}  // namespace

void softcap_forward(const Context& context, const OpCall& call) {
  const Softcap op(call);
  if (vectorised(op.x, {op.y}))
    forward<kVector>(stream_of(context), op);
  else
    forward<1>(stream_of(context), op);
}

void softcap_backward(const Context& context, const OpCall& call) {
  const Softcap op(call);
  if (!op.dx) return;
  if (vectorised(op.y, {op.dy, op.dx}))
    backward<kVector>(stream_of(context), op);
  else
    backward<1>(stream_of(context), op);
}

}  // namespace thimble::cuda
