// Prompts in cached attention: 64 rows that are consecutive positions of one slot are a tile, computed on the tensor cores.
// Other rows, those that generate and the borders between prompts, are computed one by one (cached_attention.cu).
#pragma once

#include "ops/cached_attention.h"
#include "ops/cuda/rows.cuh"

namespace thimble::cuda {

inline constexpr int kPromptTile = 64;

// Whether the rows of the tile at `first` are one prompt, as all threads of a block find it; of at least 64 threads.
// Rows of no slot do not spoil it.
__device__ inline bool is_prompt_tile(const Ints& slot, const Ints& position, std::int64_t first,
                                      std::int64_t rows) {
  constexpr int kWorthIt = 16;
  const std::int64_t n = first + threadIdx.x;
  const bool there = threadIdx.x < kPromptTile && n < rows && slot[n] >= 0;
  const bool follows =
      !there || (slot[n] == slot[first] && position[n] == position[first] + static_cast<int>(threadIdx.x));
  return __syncthreads_and(follows) != 0 && __syncthreads_count(there) >= kWorthIt;
}

// Whether there are kernels for it: bf16, heads of 32, 64 or 128.
bool takes_prompt_tiles(const CachedAttention& op);
void attend_prompt_tiles(const Context& context, const CachedAttention& op);

}  // namespace thimble::cuda
