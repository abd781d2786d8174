// The gradients of an op's two inputs. What they hold already is loaded with everything else, before anything is stored;
// where both inputs are one value (the first layer's x and x0, the innermost skip), its gradient is the sum.
#pragma once

#include "ops/cuda/rows.cuh"

namespace thimble::cuda {

struct PutBoth {
  View first, second;
  bool add_first, add_second, one;

  PutBoth(const Tensor& a, bool add_a, const Tensor& b, bool add_b)
      : first(a),
        second(b),
        add_first(a && add_a),
        add_second(b && add_b && a.data != b.data),
        one(a && a.data == b.data) {}

  template <int V>
  __device__ void load(std::int64_t row, int c, float (&a)[V], float (&b)[V]) const {
#pragma unroll
    for (int i = 0; i < V; ++i) a[i] = b[i] = 0;
    if (add_first) cuda::load(first, row, c, a);
    if (add_second) cuda::load(second, row, c, b);
  }
  template <int V>
  __device__ void store(std::int64_t row, int c, float (&a)[V], float (&b)[V], const float (&earlier_a)[V],
                        const float (&earlier_b)[V]) const {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      a[i] += earlier_a[i];
      b[i] += one ? a[i] : earlier_b[i];
    }
    if (first && !one) cuda::store(first, row, c, a);
    if (second) cuda::store(second, row, c, b);
  }
};

}  // namespace thimble::cuda
