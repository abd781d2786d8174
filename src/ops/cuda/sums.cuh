// Sums in f64 over the threads of a block, in one order.
#pragma once

#include "ops/cuda/rows.cuh"

namespace thimble::cuda {

// Valid in thread 0.
__device__ inline double block_sum(double mine) {
  __shared__ double of_warp[kThreads / kWarp];
  mine = warp_sum(mine);
  if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = mine;
  __syncthreads();
  double sum = 0;
  if (threadIdx.x == 0)
    for (double part : of_warp) sum += part;
  return sum;
}

}  // namespace thimble::cuda
