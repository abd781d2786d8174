#include "ops/gather.h"

#include "ops/cuda/kernels.h"
#include "ops/cuda/rows.cuh"

namespace thimble::cuda {

namespace {

template <int V>
void forward(cudaStream_t stream, const Gather& op) {
  const View x(op.x), y(op.y);
  const Ints source(op.row);
  for_each_pack<V>("gather", stream, op.y.rows, op.y.cols, [=] __device__(std::int64_t row, int c) {
    float a[V];
    load(x, source[row], c, a);
    store(y, row, c, a);
  });
}

template <int V>
void backward(cudaStream_t stream, const Gather& op) {
  const View dy(op.dy), dx(op.dx);
  const Ints source(op.row);
  const bool add = op.add_dx;
  if (!add)
    for_each_pack<V>("gather backward", stream, op.dx.rows, op.dx.cols,
                     [=] __device__(std::int64_t row, int c) {
                       const float zero[V] = {};
                       store(dx, row, c, zero);
                     });
  for_each_pack<V>("gather backward", stream, op.dy.rows, op.dy.cols,
                   [=] __device__(std::int64_t row, int c) {
                     float g[V];
                     load(dy, row, c, g);
                     put(dx, source[row], c, g, add);  // each row at most once: nobody else adds here
                   });
}

}  // namespace

void gather_forward(const Context& context, const OpCall& call) {
  const Gather op(call);
  if (vectorised(op.x, {op.y}))
    forward<kVector>(stream_of(context), op);
  else
    forward<1>(stream_of(context), op);
}

void gather_backward(const Context& context, const OpCall& call) {
  const Gather op(call);
  if (!op.dx) return;
  if (vectorised(op.dy, {op.dx}))
    backward<kVector>(stream_of(context), op);
  else
    backward<1>(stream_of(context), op);
}

}  // namespace thimble::cuda
