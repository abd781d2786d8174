#include "ops/exclusive_attention.h"

#include <algorithm>
#include <cmath>

#include "ops/cpu/kernels.h"
#include "ops/cpu/row_blocks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/exclusive_attention.cpp"
#include <hwy/foreach_target.h>

#include "ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thimble::cpu {
namespace HWY_NAMESPACE {

HWY_INLINE float inverse_length(const float* v, std::int64_t count) {
  const float length = std::sqrt(dot(v, v, count));
  // Not std::max: a NaN must stay one.
  return 1.0f /
         (length < static_cast<float>(kSmallestValueNorm) ? static_cast<float>(kSmallestValueNorm) : length);
}

void exclusive_attention_rows(const ExclusiveAttention& op, std::int64_t begin, std::int64_t end) {
  const std::int64_t D = op.head_size(), G = op.group();
  for (std::int64_t n = begin; n < end; ++n)
    for (std::int64_t h = 0; h < op.at.heads; ++h) {
      const float* y = op.y.row<float>(n) + h * D;
      const float* v = op.v.row<float>(n) + h / G * D;
      const float inverse = inverse_length(v, D);
      const V32 share = all(-dot(y, v, D) * inverse * inverse);
      for_lanes(D, [&](auto at) HWY_ATTR {
        at.store(hn::MulAdd(share, at.load(v), at.load(y)), op.z.row<float>(n) + h * D);
      });
    }
}

void exclusive_attention_backward_rows(const ExclusiveAttention& op, std::int64_t begin, std::int64_t end) {
  const std::int64_t D = op.head_size(), G = op.group();
  for (std::int64_t n = begin; n < end; ++n)
    for (std::int64_t h = 0; h < op.at.heads; ++h) {
      const std::int64_t kv = h / G * D;
      const float* y = op.y.row<float>(n) + h * D;
      const float* dz = op.dz.row<float>(n) + h * D;
      const float* v = op.v.row<float>(n) + kv;
      const float inverse = inverse_length(v, D);
      const float yu = dot(y, v, D) * inverse, zu = dot(dz, v, D) * inverse;
      const V32 a = all(-zu * inverse), b = all(-yu * inverse), c = all(2 * yu * zu * inverse * inverse);
      for_lanes(D, [&](auto at) HWY_ATTR {
        const V32 value = at.load(v), of_z = at.load(dz);
        if (op.dy) put(at, hn::MulAdd(a, value, of_z), op.dy.row<float>(n) + h * D, op.add_dy);
        if (!op.dv) return;
        const V32 dv = hn::MulAdd(a, at.load(y), hn::MulAdd(b, of_z, hn::Mul(c, value)));
        put(at, dv, op.dv.row<float>(n) + kv, op.add_dv || h % G != 0);
      });
    }
}

}  // namespace HWY_NAMESPACE
}  // namespace thimble::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thimble::cpu {

HWY_EXPORT(exclusive_attention_rows);
HWY_EXPORT(exclusive_attention_backward_rows);

void exclusive_attention_forward(const Context&, const OpCall& call) {
  const ExclusiveAttention op(call);
  parallel_for(op.y.rows, rows_per_task(op.y.cols), [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(exclusive_attention_rows)(op, begin, end);
  });
}

void exclusive_attention_backward(const Context&, const OpCall& call) {
  const ExclusiveAttention op(call);
  parallel_for(op.y.rows, rows_per_task(op.y.cols), [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(exclusive_attention_backward_rows)(op, begin, end);
  });
}

}  // namespace thimble::cpu
#endif
