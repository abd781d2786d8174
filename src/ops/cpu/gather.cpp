#include "ops/embedding.h"

#include <cstring>

#include "ops/cpu/gather.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/row_blocks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/gather.cpp"
#include <hwy/foreach_target.h>

#include "ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thimble::cpu {
namespace HWY_NAMESPACE {

// Not memcpy, which copies rows of this size from their end: from memory, that is three times slower.
HWY_INLINE void copy_bytes(const std::uint8_t* from, std::uint8_t* to, std::int64_t count) {
  const hn::ScalableTag<std::uint8_t> bytes;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(bytes));
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) hn::StoreU(hn::LoadU(bytes, from + i), bytes, to + i);
  std::memcpy(to + i, from + i, static_cast<std::size_t>(count - i));
}

void copy_rows(const Tensor& from, const Tensor& row, const Tensor& to, std::int64_t begin,
               std::int64_t end) {
  const std::int64_t item = dtype_bytes(from.dtype);
  const auto* source = static_cast<const std::uint8_t*>(from.data);
  auto* target = static_cast<std::uint8_t*>(to.data);
  for (std::int64_t n = begin; n < end; ++n)
    copy_bytes(source + *row.row<std::int32_t>(n) * from.stride * item, target + n * to.stride * item,
               from.cols * item);
}

void scatter_rows(const Gather& op, std::int64_t begin, std::int64_t end) {
  for (std::int64_t m = begin; m < end; ++m) {
    const Row dy(op.dy, m), dx(op.dx, *op.row.row<std::int32_t>(m));
    for_lanes(op.dy.cols, [&](auto at) HWY_ATTR { put(at, at.load(dy), dx, op.add_dx); });
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace thimble::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thimble::cpu {

HWY_EXPORT(copy_rows);
HWY_EXPORT(scatter_rows);

void gather_rows(const Tensor& from, const Tensor& row, const Tensor& to) {
  parallel_for(to.rows, rows_per_task(to.cols), [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(copy_rows)(from, row, to, begin, end);
  });
}

void gather_forward(const Context&, const OpCall& call) {
  const Gather op(call);
  gather_rows(op.x, op.row, op.y);
}

void gather_backward(const Context&, const OpCall& call) {
  const Gather op(call);
  if (!op.add_dx) fill_zero(op.dx);
  // Each row is gathered at most once, so no two tasks write the same place.
  parallel_for(op.dy.rows, rows_per_task(op.dy.cols), [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(scatter_rows)(op, begin, end);
  });
}

}  // namespace thimble::cpu
#endif
