// Attention backward on Hopper: two kernels. Scores are made twice, which is cheaper than adding dq up in memory in a fixed
// order: 7 products instead of 5, but no f32 sums of dq read and written for every tile of keys.
#include "ops/cuda/attention_wgmma.cuh"

namespace thimble::cuda {

void wgmma_attention_backward(cudaStream_t stream, const Attention& op, float2* memory) {
  const Facts facts{memory, attention_fact_rows(op.q.rows)};
  wgmma_query_gradients(stream, op, facts);  // first, wanted or not: it knows the queries
  if (op.dk || op.dv) wgmma_key_gradients(stream, op, facts);
}

}  // namespace thimble::cuda
