#include "ops/dropout.h"

#include "base/rng.h"
#include "ops/cuda/kernels.h"
#include "ops/cuda/rows.cuh"

namespace thimble::cuda {

namespace {

// to <- from m / (1 - p), forward and backward alike. The seed is read here, from memory: a recorded step draws anew.
template <int V>
void run(cudaStream_t stream, const Tensor& from_rows, const Tensor& to_rows, const Tensor& seed_words,
         DropoutAttributes at, bool add) {
  const View from(from_rows), to(to_rows);
  const Ints seed(seed_words);
  const std::uint64_t threshold = dropout_threshold(at.p);
  const float kept = 1.0f / (1.0f - at.p);
  const std::uint64_t stream_number = at.stream;
  for_each_pack<V>("dropout", stream, to_rows.rows, to_rows.cols, [=] __device__(std::int64_t row, int c) {
    const std::uint64_t key =
        std::uint64_t{static_cast<std::uint32_t>(seed[1])} << 32 | static_cast<std::uint32_t>(seed[0]);
    const std::uint64_t element = static_cast<std::uint64_t>(row) * to.cols + c;
    float a[V];
    load(from, row, c, a);
    if (V == kVector) {  // whole blocks of 4 words: element is a multiple of 8
#pragma unroll
      for (int b = 0; b < V / 4; ++b) {
        const auto words = philox(key, stream_number, element / 4 + b);
#pragma unroll
        for (int i = 0; i < 4; ++i) a[4 * b + i] *= words[i] < threshold ? 0.0f : kept;
      }
    } else {
      a[0] *= philox(key, stream_number, element / 4)[element % 4] < threshold ? 0.0f : kept;
    }
    put(to, row, c, a, add);
  });
}

void run(const Context& context, const Tensor& from, const Tensor& to, const Dropout& op, bool add) {
  if (vectorised(from, {to}))
    run<kVector>(stream_of(context), from, to, op.seed, op.at, add);
  else
    run<1>(stream_of(context), from, to, op.seed, op.at, add);
}

}  // namespace

void dropout_forward(const Context& context, const OpCall& call) {
  const Dropout op(call);
  run(context, op.x, op.y, op, false);
}

void dropout_backward(const Context& context, const OpCall& call) {
  const Dropout op(call);
  if (op.dx) run(context, op.dy, op.dx, op, op.add_dx);
}

}  // namespace thimble::cuda
