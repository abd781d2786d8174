#include "ops/embedding.h"

#include "ops/cpu/gather.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/row_blocks.h"
#include "ops/cpu/linear.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/embedding.cpp"
#include <hwy/foreach_target.h>

#include "ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thimble::cpu {
namespace HWY_NAMESPACE {

HWY_INLINE void fetch_row(const Tensor& tensor, std::int64_t row) {
  const Tensor one = tensor.row_range(row, 1);
  for (const std::byte* at = one.begin_bytes(); at < one.end_bytes(); at += kAlignment)
    __builtin_prefetch(at);
}

// Places [begin, end) of the sorted order. Rows come from anywhere: only we know which is next.
void add_embedding_rows(const Embedding& op, std::int64_t begin, std::int64_t end) {
  constexpr std::int64_t kFetchAhead = 2;
  for (std::int64_t i = begin; i < end; ++i) {
    if (i + kFetchAhead < end) fetch_row(op.dy, *op.order.row<std::int32_t>(i + kFetchAhead));
    const std::int32_t n = *op.order.row<std::int32_t>(i);
    float* dtable = op.dtable.row<float>(*op.index.row<std::int32_t>(n));
    with_rows({Row(op.dy, n)}, [&](auto dy) HWY_ATTR {
      for_lanes(op.dy.cols, [&](auto at) HWY_ATTR { put(at, at.load(dy), dtable, true); });
    });
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace thimble::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thimble::cpu {

HWY_EXPORT(add_embedding_rows);

void embedding_forward(const Context&, const OpCall& call) {
  const Embedding op(call);
  if (op.table.dtype == op.y.dtype) return gather_rows(op.table, op.index, op.y);
  parallel_for(op.y.rows, rows_per_task(op.y.cols), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n)
      unpack_row(op.table, op.scales, *op.index.row<std::int32_t>(n), op.y, n);
  });
}

// Threads share out the sorted order. Rows of the same index are not parted: a row of the table is added to by
// one task, in one order, while it stays in cache.
void embedding_backward(const Context&, const OpCall& call) {
  const Embedding op(call);
  constexpr std::int64_t kRowsPerTask = 64;
  const std::int64_t N = op.dy.rows;
  const auto index_at = [&](std::int64_t i) {
    return *op.index.row<std::int32_t>(*op.order.row<std::int32_t>(i));
  };
  const auto next_index = [&](std::int64_t i) {
    while (i > 0 && i < N && index_at(i) == index_at(i - 1)) ++i;
    return std::min(i, N);
  };
  parallel_tasks((N + kRowsPerTask - 1) / kRowsPerTask, [&](std::int64_t task) {
    HWY_DYNAMIC_DISPATCH(add_embedding_rows)
    (op, next_index(task * kRowsPerTask), next_index((task + 1) * kRowsPerTask));
  });
}

}  // namespace thimble::cpu
#endif
