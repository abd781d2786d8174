#include "ops/dropout.h"

#include "base/rng.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/row_blocks.h"

namespace thimble::cpu {

namespace {

// out = in * mask / (1 - p), or added to it.
void mask_rows(const Dropout& op, const Tensor& in, const Tensor& out, bool add) {
  const std::uint64_t seed = op.seed_value(), threshold = dropout_threshold(op.at.p);
  const float kept = 1.0f / (1.0f - op.at.p);
  parallel_for(in.rows, rows_per_task(in.cols), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n) {
      auto place = static_cast<std::uint64_t>(n * in.cols);
      auto words = philox(seed, op.at.stream, place / 4);
      for (std::int64_t c = 0; c < in.cols; ++c, ++place) {
        if (place % 4 == 0) words = philox(seed, op.at.stream, place / 4);
        // Times 0, not "= 0": a NaN in a dropped place must stay visible.
        const float value = in.row<float>(n)[c] * (words[place % 4] < threshold ? 0.0f : kept);
        float& there = out.row<float>(n)[c];
        there = add ? there + value : value;
      }
    }
  });
}

}  // namespace

void dropout_forward(const Context&, const OpCall& call) {
  const Dropout op(call);
  mask_rows(op, op.x, op.y, false);
}

void dropout_backward(const Context&, const OpCall& call) {
  const Dropout op(call);
  mask_rows(op, op.dy, op.dx, op.add_dx);
}

}  // namespace thimble::cpu
