// An element of residual_mix, to the same bits wherever it is computed.
#pragma once

namespace thimble::cuda {

__device__ inline float mixed(float m0, float x, float m1, float x0) {
  return __fmaf_rn(m0, x, __fmul_rn(m1, x0));
}

}  // namespace thimble::cuda
