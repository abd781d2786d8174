#include "ops/cast.h"

#include "ops/cpu/cast.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/row_blocks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/cast.cpp"
#include <hwy/foreach_target.h>

#include "ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thimble::cpu {
namespace HWY_NAMESPACE {

void cast_rows(const Tensor& from, const Tensor& to, bool add, std::int64_t begin, std::int64_t end) {
  for (std::int64_t n = begin; n < end; ++n) {
    const Row x(from, n), y(to, n);
    for_lanes(from.cols, [&](auto at) HWY_ATTR { put(at, at.load(x), y, add); });
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace thimble::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thimble::cpu {

HWY_EXPORT(cast_rows);

namespace {

float widened(const Tensor& tensor, std::int64_t row, std::int64_t column) {
  if (tensor.dtype == DType::f16) return to_f32(tensor.row<f16>(row)[column]);
  if (tensor.dtype == DType::bf16) return to_f32(tensor.row<bf16>(row)[column]);
  return tensor.row<float>(row)[column];
}

void store(const Tensor& tensor, std::int64_t row, std::int64_t column, float value) {
  if (tensor.dtype == DType::f16)
    tensor.row<f16>(row)[column] = to_f16(value);
  else if (tensor.dtype == DType::bf16)
    tensor.row<bf16>(row)[column] = to_bf16(value);
  else
    tensor.row<float>(row)[column] = value;
}

// f16 is for storage: nothing casts to it inside a step.
void cast_f16_rows(const Tensor& from, const Tensor& to, bool add, std::int64_t begin, std::int64_t end) {
  for (std::int64_t n = begin; n < end; ++n)
    for (std::int64_t c = 0; c < from.cols; ++c)
      store(to, n, c, add ? widened(to, n, c) + widened(from, n, c) : widened(from, n, c));
}

}  // namespace

void cast_into(const Tensor& from, const Tensor& to, bool add) {
  const bool f16_storage = from.dtype == DType::f16 || to.dtype == DType::f16;
  parallel_for(from.rows, rows_per_task(from.cols), [&](std::int64_t begin, std::int64_t end) {
    if (f16_storage)
      cast_f16_rows(from, to, add, begin, end);
    else
      HWY_DYNAMIC_DISPATCH(cast_rows)(from, to, add, begin, end);
  });
}

void cast_forward(const Context&, const OpCall& call) {
  const Cast op(call);
  cast_into(op.x, op.y, false);
}

void cast_backward(const Context&, const OpCall& call) {
  const Cast op(call);
  cast_into(op.dy, op.dx, op.add_dx);
}

}  // namespace thimble::cpu
#endif
