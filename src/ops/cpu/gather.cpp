#include "ops/gather.h"

#include <cstring>

#include "ops/cpu/kernels.h"
#include "ops/cpu/row_blocks.h"

namespace thimble::cpu {

void gather_forward(const Context&, const OpCall& call) {
  const Gather op(call);
  const auto bytes = static_cast<std::size_t>(op.y.cols) * sizeof(float);
  parallel_for(op.y.rows, rows_per_task(op.y.cols), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t m = begin; m < end; ++m)
      std::memcpy(op.y.row<float>(m), op.x.row<float>(*op.row.row<std::int32_t>(m)), bytes);
  });
}

void gather_backward(const Context&, const OpCall& call) {
  const Gather op(call);
  if (!op.add_dx) fill_zero(op.dx);
  // Each row is gathered at most once, so no two tasks write the same place.
  parallel_for(op.dy.rows, rows_per_task(op.dy.cols), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t m = begin; m < end; ++m) {
      const float* dy = op.dy.row<float>(m);
      float* dx = op.dx.row<float>(*op.row.row<std::int32_t>(m));
      for (std::int64_t c = 0; c < op.dy.cols; ++c) dx[c] += dy[c];
    }
  });
}

}  // namespace thimble::cpu
