#include "ops/attention.h"

#include "ops/cuda/attention.h"
#include "ops/cuda/kernels.h"

namespace thimble::cuda {

namespace {

bool on_tensor_cores(const Attention& op) {
  const std::int64_t size = op.head_size();
  return op.q.dtype != DType::f32 && (size == 32 || size == 64 || size == 128) &&
         vectorised(op.q, {op.k, op.v, op.y, op.dy, op.dq, op.dk, op.dv});
}

// Hopper's own products: of bf16 alone, with row numbers of 32 bits, and a highest score that stays the highest when
// scaled.
bool on_hopper(const Context& context, const Attention& op) {
  return runtime_of(context).hopper() && on_tensor_cores(op) && op.q.dtype == DType::bf16 &&
         op.at.scale > 0 && op.q.rows < (1 << 30);
}

// delta[n, h] = dy . y: what softmax's backward subtracts.
void fill_delta(cudaStream_t stream, const Attention& op, float* delta) {
  const View dy(op.dy), y(op.y);
  const int size = static_cast<int>(op.head_size()), heads = op.at.heads;
  for_each_row("attention delta", stream, op.q.rows * heads, [=] __device__(std::int64_t row, int lane) {
    const std::int64_t n = row / heads, column = row % heads * size;
    float dot = 0;
    for (int d = lane; d < size; d += kWarp) dot += load_one(dy, n, column + d) * load_one(y, n, column + d);
    dot = warp_sum(dot);
    if (lane == 0) delta[row] = dot;
  });
}

}  // namespace

void attention_forward(const Context& context, const OpCall& call) {
  const Attention op(call);
  if (op.q.rows == 0) return;
  (on_hopper(context, op) ? wgmma_attention_forward
   : on_tensor_cores(op)  ? mma_attention_forward
                          : plain_attention_forward)(stream_of(context), op);
}

void attention_backward(const Context& context, const OpCall& call) {
  const Attention op(call);
  if (op.q.rows == 0 || (!op.dq && !op.dk && !op.dv)) return;
  if (on_hopper(context, op))
    return wgmma_attention_backward(stream_of(context), op, static_cast<float2*>(call.scratch.data));
  auto* delta = static_cast<float*>(call.scratch.data);
  fill_delta(stream_of(context), op, delta);
  (on_tensor_cores(op) ? mma_attention_backward : plain_attention_backward)(stream_of(context), op, delta);
}

}  // namespace thimble::cuda
