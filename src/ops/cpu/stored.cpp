#include "ops/cpu/stored.h"

#include "base/parallel.h"
#include "ops/cpu/row_blocks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/stored.cpp"
#include <hwy/foreach_target.h>

#include "ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thimble::cpu {
namespace HWY_NAMESPACE {

template <class T>
HWY_INLINE void unpack_values(const T* from, const float* scales, bool one_scale, Row to,
                              std::int64_t count) {
  for_lanes(count, [&](auto at) HWY_ATTR {
    const V32 value = at.load(from);
    at.store(scales ? hn::Mul(value, all(scales[one_scale ? 0 : at.i / kScaledColumns])) : value, to);
  });
}

void unpack_any_row(const Tensor& w, const Tensor& scales, std::int64_t row, const Tensor& to,
                    std::int64_t to_row) {
  const float* scale = scales ? scales.row<float>(row) : nullptr;
  const auto unpack = [&](const auto* from) HWY_ATTR {
    unpack_values(from, scale, one_scale_a_row(scales), Row(to, to_row), w.cols);
  };
  switch (w.dtype) {
    case DType::i8:
      return unpack(w.row<std::int8_t>(row));
    case DType::f16:
      return unpack(w.row<f16>(row));
    case DType::bf16:
      return unpack(w.row<bf16>(row));
    default:
      return unpack(w.row<float>(row));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace thimble::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thimble::cpu {

HWY_EXPORT(unpack_any_row);

namespace {

struct UnpackedMatrix {
  Arena memory;
};

}  // namespace

void unpack_row(const Tensor& w, const Tensor& scales, std::int64_t row, const Tensor& to,
                std::int64_t to_row) {
  HWY_DYNAMIC_DISPATCH(unpack_any_row)(w, scales, row, to, to_row);
}

Tensor unpacked(const Context& context, const Tensor& w, const Tensor& scales, DType dtype) {
  if (w.dtype == dtype) return w;
  Arena& memory = context.state<UnpackedMatrix>().memory;
  const std::int64_t bytes = w.count() * dtype_bytes(dtype);
  if (memory.bytes() < bytes) memory = Arena(bytes, "an unpacked matrix", "lower dim or vocab_size");
  const Tensor plain{memory.at(0), w.rows, w.cols, w.cols, dtype, Device::cpu};
  parallel_for(w.rows, rows_per_task(w.cols), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) unpack_row(w, scales, row, plain, row);
  });
  return plain;
}

}  // namespace thimble::cpu
#endif
