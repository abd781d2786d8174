// Attention backward on Hopper: what is known of every query first, then two kernels. Scores are made twice, which is
// cheaper than adding dq up in memory in a fixed order: 7 products instead of 5, but no f32 sums of dq read and written for
// every tile of keys.
#include "ops/cuda/attention_wgmma.cuh"

namespace thimble::cuda {

namespace {

// lse in powers of 2, and delta[n, h] = dy . y: what softmax's backward subtracts. D / 8 lanes have a row of a head.
template <int D>
__global__ void __launch_bounds__(kThreads)
    fill_facts(const View dy, const View y, const View lse, const Facts facts, const unsigned heads) {
  constexpr int kLanes = D / 8, kRows = kThreads / kLanes;
  const int head = static_cast<int>(blockIdx.x % heads);
  const std::int64_t row = std::int64_t{blockIdx.x / heads} * kRows + threadIdx.x / kLanes;
  const bool there = row < y.rows;
  float dot = 0;
  if (there) {
    float a[kVector], b[kVector];
    const std::int64_t column = head * D + threadIdx.x % kLanes * kVector;
    load(dy, row, column, a);
    load(y, row, column, b);
#pragma unroll
    for (int i = 0; i < kVector; ++i) dot = fmaf(a[i], b[i], dot);
  }
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) dot += __shfl_xor_sync(~0u, dot, step);
  if (threadIdx.x % kLanes == 0 && row < facts.stride)
    facts.data[head * facts.stride + row] =
        there ? QueryFact{load_one(lse, row, head) * kLog2E, dot} : QueryFact{INFINITY, 0};
}

template <int D>
Facts facts_of(cudaStream_t stream, const Attention& op, float2* memory) {
  constexpr int kRows = kThreads / (D / 8);
  const Facts facts{memory, attention_fact_rows(op.q.rows)};
  fill_facts<D>
      <<<blocks_for(facts.stride, kRows) * static_cast<unsigned>(op.at.heads), kThreads, 0, stream>>>(
          View(op.dy), View(op.y), View(op.lse), facts, static_cast<unsigned>(op.at.heads));
  launched("attention facts");
  return facts;
}

Facts facts_of(cudaStream_t stream, const Attention& op, float2* memory) {
  switch (op.head_size()) {
    case 32:
      return facts_of<32>(stream, op, memory);
    case 64:
      return facts_of<64>(stream, op, memory);
    default:
      return facts_of<128>(stream, op, memory);
  }
}

}  // namespace

void wgmma_attention_backward(cudaStream_t stream, const Attention& op, float2* memory) {
  const Facts facts = facts_of(stream, op, memory);
  if (op.dk || op.dv) wgmma_key_gradients(stream, op, facts);
  if (op.dq) wgmma_query_gradients(stream, op, facts);
}

}  // namespace thimble::cuda
