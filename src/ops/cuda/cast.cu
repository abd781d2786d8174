#include "ops/cast.h"

#include <cuda_fp16.h>

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

// f16 is for storage: nothing casts to it inside a step, so it need not be fast.
__device__ float load_storage(const View& v, bool f16, std::int64_t row, int c) {
  return f16 ? __half2float(static_cast<const __half*>(v.data)[row * v.stride + c]) : load_one(v, row, c);
}
__device__ void store_storage(const View& v, bool f16, std::int64_t row, int c, float value) {
  if (f16)
    static_cast<__half*>(v.data)[row * v.stride + c] = __float2half_rn(value);
  else
    store_one(v, row, c, value);
}

void cast_f16_rows(cudaStream_t stream, const Tensor& from_rows, const Tensor& to_rows, bool add) {
  const View from(from_rows), to(to_rows);
  const bool from_f16 = from_rows.dtype == DType::f16, to_f16 = to_rows.dtype == DType::f16;
  for_each_pack<1>("cast", stream, to_rows.rows, to_rows.cols, [=] __device__(std::int64_t row, int c) {
    const float before = add ? load_storage(to, to_f16, row, c) : 0.0f;
    store_storage(to, to_f16, row, c, before + load_storage(from, from_f16, row, c));
  });
}

void run(const Context& context, const Tensor& from, const Tensor& to, bool add) {
  if (from.dtype == DType::f16 || to.dtype == DType::f16)
    cast_f16_rows(stream_of(context), from, to, add);
  else if (vectorised(from, {to}))
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
