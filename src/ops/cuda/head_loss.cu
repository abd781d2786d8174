#include "ops/head_loss.h"

#include "ops/cuda/gemm.h"
#include "ops/cuda/kernels.h"
#include "ops/cuda/rows.cuh"

namespace thimble::cuda {

namespace {

constexpr int kWarps = kThreads / kWarp;

// The largest logit so far and the sum of exponentials below it.
struct Softmax {
  float highest, sum;

  __device__ void add(Softmax other) {
    const float now = fmaxf(highest, other.highest);
    // Nothing seen yet: exp(-inf - -inf) would be NaN. (fmaxf passes over a NaN, which must be seen.)
    if (now == -INFINITY && !isnan(other.highest)) {
      sum += other.sum;
      return;
    }
    sum = sum * expf(highest - now) + other.sum * expf(other.highest - now);
    highest = now;
  }
};

// The same for all threads of a block.
__device__ Softmax over_block(Softmax mine) {
  __shared__ Softmax of_warp[kWarps];
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2)
    mine.add({__shfl_xor_sync(~0u, mine.highest, step), __shfl_xor_sync(~0u, mine.sum, step)});
  if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = mine;
  __syncthreads();
  Softmax all = of_warp[0];
  for (int warp = 1; warp < kWarps; ++warp) all.add(of_warp[warp]);
  return all;
}

struct Chunk {
  View logits;   // [rows, V], f32
  View dlogits;  // [rows, V], in the type of the weights; absent: nats alone
  Ints target;
  View weight, nats;
  std::int64_t first;  // row of the batch
  float cap;
};

__global__ void __launch_bounds__(kThreads) loss_rows(Chunk chunk) {
  const std::int64_t row = blockIdx.x, n = chunk.first + row;
  const std::int32_t target = chunk.target[n], cols = chunk.logits.cols;
  if (target < 0) {
    if (threadIdx.x == 0) store_one(chunk.nats, n, 0, 0);
    if (chunk.dlogits)
      for (int v = threadIdx.x; v < cols; v += kThreads) store_one(chunk.dlogits, row, v, 0);
    return;
  }
  const auto logit = [&](int v) {
    const float z = load_one(chunk.logits, row, v);
    return chunk.cap > 0 ? chunk.cap * tanhf(z / chunk.cap) : z;
  };
  const float at_target = logit(target);
  Softmax mine{-INFINITY, 0};
  for (int v = threadIdx.x; v < cols; v += kThreads) mine.add({logit(v), 1});
  const Softmax all =
      over_block(mine);  // after it, logits may be overwritten: everybody has read the target's
  const float lse = all.highest + logf(all.sum);
  if (threadIdx.x == 0) store_one(chunk.nats, n, 0, lse - at_target);
  if (!chunk.dlogits) return;
  const float weight = load_one(chunk.weight, n, 0);
  for (int v = threadIdx.x; v < cols; v += kThreads) {
    const float l = logit(v), t = chunk.cap > 0 ? l / chunk.cap : 0.0f;
    const float p = expf(l - lse) - (v == target ? 1.0f : 0.0f);
    store_one(chunk.dlogits, row, v, weight * p * (1 - t * t));
  }
}

// Logits are f32. Their gradients take their place, or stand behind them where the products are bf16.
void run(const Context& context, const HeadLoss& op, bool gradients) {
  const bool half = op.x.dtype == DType::bf16;
  const std::int64_t V = op.w.rows, most = op.at.chunk_rows < op.x.rows ? op.at.chunk_rows : op.x.rows;
  for (std::int64_t first = 0; first < op.x.rows; first += most) {
    const std::int64_t rows = first + most < op.x.rows ? most : op.x.rows - first;
    auto* floats = static_cast<float*>(op.scratch.data);
    const Tensor x = op.x.row_range(first, rows);
    const Tensor logits{floats, rows, V, V, DType::f32, Device::cuda};
    Tensor dlogits = logits;
    if (half) dlogits = {floats + most * V, rows, V, V, DType::bf16, Device::cuda};
    gemm(context, {x}, transposed(op.w), logits, false);
    const Chunk chunk{View(logits),    View(gradients ? dlogits : Tensor{}),
                      Ints(op.target), View(op.weight),
                      View(op.nats),   first,
                      op.at.cap};
    loss_rows<<<blocks_for(rows, 1), kThreads, 0, stream_of(context)>>>(chunk);
    launched("head_loss");
    if (!gradients) continue;
    if (op.dx) gemm(context, {dlogits}, {op.w}, op.dx.row_range(first, rows), op.add_dx);
    if (op.dw) gemm(context, transposed(dlogits), {x}, op.dw, true);
  }
}

}  // namespace

void head_loss_forward(const Context& context, const OpCall& call) {
  run(context, HeadLoss(call), false);
}

void head_loss_backward(const Context& context, const OpCall& call) {
  run(context, HeadLoss(call), true);
}

}  // namespace thimble::cuda
