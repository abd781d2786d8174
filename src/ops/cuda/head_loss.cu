// head_loss: for each chunk of rows, the logits, their loss and gradients, and the products of
// backward. softcap: capped logits that are returned.
//
// Rows of logits have a stride of whole vectors, so products and accesses are aligned for every
// vocabulary size. A row of up to 2048 logits is read once and stays in the registers of a warp; a
// longer row is read twice, by a block.
#include "ops/head_loss.h"

#include "ops/cuda/gemm.h"
#include "ops/cuda/rows.cuh"

namespace thimble::cuda {

namespace {

// The stride of logits, which keeps every row aligned.
std::int64_t head_loss_stride(std::int64_t vocabulary) {
  return (vocabulary + 15) / 16 * 16;
}

constexpr int kWarps = kThreads / kWarp;
constexpr int kPackColumns = kWarp * kVector;

constexpr float kLog2E = 1.44269504f;

// Hardware approximations that flush results below 2^-126 to 0: few instructions per logit.
__device__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ float reciprocal_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// exp(x - base)
__device__ float exp_below(float x, float base) {
  return exp2_approx((x - base) * kLog2E);
}

struct Chunk {
  View logits;   // [rows, V], f32
  View dlogits;  // [rows, V], in the dtype of the weights; absent: only nats are computed
  Ints target;
  View weight, nats;
  std::int64_t first;  // first row of the chunk in the batch
  float cap, narrow;   // narrow: 2 log2(e) / cap

  // l = cap tanh(z / cap), and its slope. tanh uses a single exponential: its absolute error is
  // that of 1 + tanh, far below the precision of a logit.
  __device__ float capped(float z, float& slope) const {
    slope = 1;
    if (cap <= 0) return z;
    const float t = 1 - 2 * reciprocal_approx(1 + exp2_approx(narrow * z));
    slope = 1 - t * t;
    return cap * t;
  }
  __device__ Raw fetch_logits(std::int64_t row, int v) const { return fetch(logits, row, v, false); }
  // Eight logits from column v on; -inf past the last, which has weight 0.
  __device__ void unpack_capped(const Raw& raw, int v, float (&l)[kVector], float (&slope)[kVector]) const {
    unpack(raw, false, l);
#pragma unroll
    for (int i = 0; i < kVector; ++i) l[i] = v + i < logits.cols ? capped(l[i], slope[i]) : -INFINITY;
  }
  __device__ float weight_of(std::int64_t n) const {
    return dlogits ? load_one(weight, n, 0) : 0.0f;
  }
};

__device__ float warp_max(float x) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, step));
  return x;
}

template <int P>
__global__ void __launch_bounds__(kThreads) loss_in_registers(Chunk chunk) {
  const std::int64_t row = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp, n = chunk.first + row;
  if (row >= chunk.logits.rows) return;
  const int lane = static_cast<int>(threadIdx.x % kWarp), cols = chunk.logits.cols;
  const std::int32_t target = chunk.target[n];
  const float weight = chunk.weight_of(n);
  const auto column = [&](int p) { return p * kPackColumns + lane * kVector; };
  if (target < 0) {
    const float zeros[kVector] = {};
    if (lane == 0) store_one(chunk.nats, n, 0, 0);
    for (int p = 0; p < P && chunk.dlogits; ++p)
      if (column(p) < cols) store(chunk.dlogits, row, column(p), zeros);
    return;
  }
  Raw raw[P] = {};  // issue all loads before waiting for the first
#pragma unroll
  for (int p = 0; p < P; ++p)
    if (column(p) < cols) raw[p] = chunk.fetch_logits(row, column(p));
  const float target_logit = static_cast<const float*>(chunk.logits.data)[row * chunk.logits.stride + target];
  float l[P][kVector], slope[P][kVector];
#pragma unroll
  for (int p = 0; p < P; ++p) chunk.unpack_capped(raw[p], column(p), l[p], slope[p]);
  float unused;
  const float at_target = chunk.capped(target_logit, unused);
  float highest = -INFINITY, sum = 0;  // fmaxf ignores NaN, but the sum propagates it
#pragma unroll
  for (int p = 0; p < P; ++p)
#pragma unroll
    for (int i = 0; i < kVector; ++i) highest = fmaxf(highest, l[p][i]);
  highest = warp_max(highest);
#pragma unroll
  for (int p = 0; p < P; ++p)
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      l[p][i] = exp_below(l[p][i], highest);
      sum += l[p][i];
    }
  sum = warp_sum(sum);  // also a barrier: logits may be overwritten after it
  if (lane == 0) store_one(chunk.nats, n, 0, highest + logf(sum) - at_target);
  if (!chunk.dlogits) return;
  const float share = weight / sum;
#pragma unroll
  for (int p = 0; p < P; ++p) {
    if (column(p) >= cols) continue;
    const int target_offset = target - column(p);
    if (target_offset < 0 || target_offset >= kVector) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) l[p][i] *= share * slope[p][i];
    } else {
#pragma unroll
      for (int i = 0; i < kVector; ++i)
        l[p][i] = (l[p][i] * share - (i == target_offset ? weight : 0.0f)) * slope[p][i];
    }
    store(chunk.dlogits, row, column(p), l[p]);
  }
}

// The maximum logit so far and the sum of exponentials relative to it.
struct Softmax {
  float highest, sum;

  __device__ void add(Softmax other) {
    const float now = fmaxf(highest, other.highest);
    // All -inf so far: exp(-inf - -inf) would be NaN. (fmaxf ignores NaN, so test for it.)
    if (now == -INFINITY && !isnan(other.highest)) {
      sum += other.sum;
      return;
    }
    sum = sum * exp_below(highest, now) + other.sum * exp_below(other.highest, now);
    highest = now;
  }
};

// Combines the threads of a block; every thread gets the result.
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

__global__ void __launch_bounds__(kThreads) loss_of_long_rows(Chunk chunk) {
  const std::int64_t row = blockIdx.x, n = chunk.first + row;
  const std::int32_t target = chunk.target[n], cols = chunk.logits.cols;
  const int begin = static_cast<int>(threadIdx.x) * kVector, step = kThreads * kVector;
  if (target < 0) {
    const float zeros[kVector] = {};
    if (threadIdx.x == 0) store_one(chunk.nats, n, 0, 0);
    for (int v = begin; v < cols && chunk.dlogits; v += step) store(chunk.dlogits, row, v, zeros);
    return;
  }
  float unused;
  const float at_target = chunk.capped(load_one(chunk.logits, row, target), unused);
  Softmax mine{-INFINITY, 0};
  for (int v = begin; v < cols; v += step) {
    float l[kVector], slope[kVector];
    chunk.unpack_capped(chunk.fetch_logits(row, v), v, l, slope);
    float highest = -INFINITY, sum = 0;
#pragma unroll
    for (int i = 0; i < kVector; ++i) highest = isnan(l[i]) ? l[i] : fmaxf(highest, l[i]);
#pragma unroll
    for (int i = 0; i < kVector; ++i) sum += l[i] == -INFINITY ? 0.0f : exp_below(l[i], highest);
    mine.add({highest, sum});
  }
  // Also a barrier: all threads have read the target's logit, so logits may be overwritten.
  const Softmax all = over_block(mine);
  const float lse = all.highest + logf(all.sum);
  if (threadIdx.x == 0) store_one(chunk.nats, n, 0, lse - at_target);
  if (!chunk.dlogits) return;
  const float weight = chunk.weight_of(n);
  for (int v = begin; v < cols; v += step) {
    float l[kVector], slope[kVector];
    chunk.unpack_capped(chunk.fetch_logits(row, v), v, l, slope);
#pragma unroll
    for (int i = 0; i < kVector; ++i)
      l[i] = weight * (exp_below(l[i], lse) - (v + i == target ? 1.0f : 0.0f)) * slope[i];
    store(chunk.dlogits, row, v, l);
  }
}

void loss(cudaStream_t stream, const Chunk& chunk) {
  const unsigned blocks = blocks_for(chunk.logits.rows, kWarps);
  const int cols = chunk.logits.cols;
  if (cols <= kPackColumns)
    loss_in_registers<1><<<blocks, kThreads, 0, stream>>>(chunk);
  else if (cols <= 2 * kPackColumns)
    loss_in_registers<2><<<blocks, kThreads, 0, stream>>>(chunk);
  else if (cols <= 4 * kPackColumns)
    loss_in_registers<4><<<blocks, kThreads, 0, stream>>>(chunk);
  else if (cols <= 8 * kPackColumns)
    loss_in_registers<8><<<blocks, kThreads, 0, stream>>>(chunk);
  else
    loss_of_long_rows<<<blocks_for(chunk.logits.rows, 1), kThreads, 0, stream>>>(chunk);
  launched("head_loss");
}

// Logits are f32. Their gradients overwrite them, or follow them in scratch if products are 16-bit.
void loss_in_chunks(const Context& context, const HeadLoss& op, bool gradients) {
  const bool half = op.x.dtype != DType::f32;
  const std::int64_t V = op.w.rows, stride = head_loss_stride(V),
                     most = op.at.chunk_rows < op.x.rows ? op.at.chunk_rows : op.x.rows;
  for (std::int64_t first = 0; first < op.x.rows; first += most) {
    const std::int64_t rows = first + most < op.x.rows ? most : op.x.rows - first;
    auto* floats = static_cast<float*>(op.scratch.data);
    const Tensor x = op.x.row_range(first, rows);
    const Tensor logits{floats, rows, V, stride, DType::f32, Device::cuda};
    Tensor dlogits = logits;
    if (half) dlogits = {floats + most * stride, rows, V, stride, op.x.dtype, Device::cuda};
    gemm(context, {x}, transposed(op.w), logits, false);
    loss(stream_of(context),
         {View(logits), View(gradients ? dlogits : Tensor{}), Ints(op.target), View(op.weight), View(op.nats),
          first, op.at.cap, op.at.cap > 0 ? 2 * kLog2E / op.at.cap : 0.0f});
    if (!gradients) continue;
    if (op.dx) gemm(context, {dlogits}, {op.w}, op.dx.row_range(first, rows), op.add_dx);
    if (op.dw) gemm(context, transposed(dlogits), {x}, op.dw, true);
  }
}

void head_loss_forward(const Context& context, const OpCall& call) {
  loss_in_chunks(context, HeadLoss(call), false);
}

void head_loss_backward(const Context& context, const OpCall& call) {
  loss_in_chunks(context, HeadLoss(call), true);
}

template <int V>
void softcap(cudaStream_t stream, const Softcap& op) {
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
void softcap_gradients(cudaStream_t stream, const Softcap& op) {
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

void softcap_forward(const Context& context, const OpCall& call) {
  const Softcap op(call);
  if (vectorized(op.x, {op.y}))
    softcap<kVector>(stream_of(context), op);
  else
    softcap<1>(stream_of(context), op);
}

void softcap_backward(const Context& context, const OpCall& call) {
  const Softcap op(call);
  if (!op.dx) return;
  if (vectorized(op.y, {op.dy, op.dx}))
    softcap_gradients<kVector>(stream_of(context), op);
  else
    softcap_gradients<1>(stream_of(context), op);
}

std::int64_t head_loss_scratch_bytes(std::span<const Shape> in, const Attributes& attributes) {
  // f32 logits; with 16-bit rows, followed by their gradients.
  const std::int64_t rows =
      std::min<std::int64_t>(attributes.as<HeadLossAttributes>().chunk_rows, in[0].rows);
  return rows * head_loss_stride(in[1].rows) * (in[0].dtype != DType::f32 ? kFloatBytes + 2 : kFloatBytes);
}

}  // namespace

extern const PluginOp kHeadLoss = {"head_loss",
                                   {.forward = head_loss_forward,
                                    .backward = head_loss_backward,
                                    .rows = kRowTypes,
                                    .scratch_bytes = head_loss_scratch_bytes}};
extern const PluginOp kSoftcap = {
    "softcap",
    {.forward = softcap_forward, .backward = softcap_backward, .rows = kRowTypes, .wide_gradients = true}};

}  // namespace thimble::cuda
