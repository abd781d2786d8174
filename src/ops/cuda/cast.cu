#include "ops/cast.h"

#include "ops/cuda/kernels.h"
#include "ops/cuda/rows.cuh"

namespace thimble::cuda {

namespace {

template <int V>
void cast_rows(cudaStream_t stream, const Tensor& from_rows, const Tensor& to_rows, bool add) {
  const View from(from_rows), to(to_rows);
  for_each_pack<V>("cast", stream, to_rows.rows, to_rows.cols, [=] __device__(std::int64_t row, int c) {
    float a[V];
    load(from, row, c, a);
    put(to, row, c, a, add);
  });
}

void run(const Context& context, const Tensor& from, const Tensor& to, bool add) {
  if (vectorised(from, {to}))
    cast_rows<kVector>(stream_of(context), from, to, add);
  else
    cast_rows<1>(stream_of(context), from, to, add);
}

}  // namespace

void cast_forward(const Context& context, const OpCall& call) {
  const Cast op(call);
  run(context, op.x, op.y, false);
}

void cast_backward(const Context& context, const OpCall& call) {
  const Cast op(call);
  if (op.dx) run(context, op.dy, op.dx, op.add_dx);
}

}  // namespace thimble::cuda
