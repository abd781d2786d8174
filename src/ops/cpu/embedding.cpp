#include "ops/embedding.h"

#include <cstring>

#include "ops/cpu/kernels.h"
#include "ops/cpu/row_blocks.h"

namespace thimble::cpu {

void embedding_forward(const Context&, const OpCall& call) {
  const Embedding op(call);
  const auto bytes = static_cast<std::size_t>(op.y.cols) * sizeof(float);
  parallel_for(op.y.rows, rows_per_task(op.y.cols), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n)
      std::memcpy(op.y.row<float>(n), op.table.row<float>(*op.index.row<std::int32_t>(n)), bytes);
  });
}

// Threads share out columns, not rows: each walks all rows in the sorted order, so a table row is added to by
// one thread, in one order, while it stays in cache.
void embedding_backward(const Context&, const OpCall& call) {
  const Embedding op(call);
  constexpr std::int64_t kColumnsPerTask = 64;
  parallel_for(op.dy.cols, kColumnsPerTask, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = 0; i < op.dy.rows; ++i) {
      const std::int32_t n = *op.order.row<std::int32_t>(i);
      const float* dy = op.dy.row<float>(n);
      float* dtable = op.dtable.row<float>(*op.index.row<std::int32_t>(n));
      for (std::int64_t c = begin; c < end; ++c) dtable[c] += dy[c];
    }
  });
}

}  // namespace thimble::cpu
