// For heads of any size up to 128, at any address. A block of threads has one head of one row: each thread a key of every 128 for the scores, then each a column of the
// values for the sum. Rows are computed alone, in one order: batch-invariant.
#include "ops/cuda/cached_attention_plain.h"

#include "ops/cuda/rows.cuh"

namespace thimble::cuda {

namespace {

constexpr int kKeys = 128, kWarps = kKeys / kWarp, kLargestHead = kKeys;

struct Cached {
  View q, k_cache, v_cache, y;
  Ints slot, position;
  std::int32_t size, group, context;
  float scale;

  __device__ std::int64_t slot_row(std::int64_t n) const { return std::int64_t{slot[n]} * context; }
};

// op(a, b) over all threads, for all of them; the same tree every time.
template <class Combine>
__device__ float over_block(float mine, Combine combine) {
  __shared__ float of_warp[kWarps];
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) mine = combine(mine, __shfl_xor_sync(~0u, mine, step));
  __syncthreads();  // the last call's readers are done
  if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = mine;
  __syncthreads();
  float all = of_warp[0];
#pragma unroll
  for (int warp = 1; warp < kWarps; ++warp) all = combine(all, of_warp[warp]);
  return all;
}

__global__ void __launch_bounds__(kKeys) attend(Cached c) {
  __shared__ float query[kLargestHead], weights[kKeys];
  const std::int64_t n = blockIdx.x, first = c.slot_row(n);
  const int head = blockIdx.y, d = static_cast<int>(threadIdx.x), last = c.position[n];
  if (first < 0) {
    if (d < c.size) store_one(c.y, n, std::int64_t{head} * c.size + d, 0.0f);
    return;
  }
  const std::int64_t kv = std::int64_t{head / c.group} * c.size;
  if (d < c.size) query[d] = load_one(c.q, n, std::int64_t{head} * c.size + d) * c.scale;
  __syncthreads();
  float highest = -INFINITY, sum = 0, result = 0;
  for (int begin = 0; begin <= last; begin += kKeys) {
    const int key = begin + d;
    float score = -INFINITY;
    if (key <= last) {
      score = 0;
      for (int i = 0; i < c.size; ++i) score += query[i] * load_one(c.k_cache, first + key, kv + i);
    }
    const float now = fmaxf(highest, over_block(score, [](float a, float b) { return fmaxf(a, b); }));
    const float keep = highest == -INFINITY ? 0.0f : expf(highest - now);
    const float weight = key <= last ? expf(score - now) : 0.0f;
    weights[d] = weight;
    sum = sum * keep +
          over_block(weight, [](float a, float b) { return a + b; });  // its barriers publish weights
    highest = now;
    result *= keep;
    const int count = last - begin + 1 < kKeys ? last - begin + 1 : kKeys;
    if (d < c.size)
      for (int i = 0; i < count; ++i) result += weights[i] * load_one(c.v_cache, first + begin + i, kv + d);
    __syncthreads();
  }
  if (d < c.size) store_one(c.y, n, std::int64_t{head} * c.size + d, result / sum);
}

}  // namespace

void attend_plainly(const Context& context, const CachedAttention& op) {
  if (op.head_size() > kLargestHead)
    refuse("[cached_attention] expected a head size of at most 128", op.head_size());
  const Cached cached{View(op.q),
                      View(op.k_cache),
                      View(op.v_cache),
                      View(op.y),
                      Ints(op.slot),
                      Ints(op.position),
                      static_cast<std::int32_t>(op.head_size()),
                      static_cast<std::int32_t>(op.group()),
                      op.at.context,
                      op.at.scale};
  attend<<<dim3(blocks_for(op.q.rows, 1), static_cast<unsigned>(op.at.heads)), kKeys, 0,
           stream_of(context)>>>(cached);
  launched("cached_attention");
}

}  // namespace thimble::cuda
