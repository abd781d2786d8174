#include "ops/attention.h"

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

HWY_INLINE float inverse_length(Row v, std::int64_t count) {
  const float length = std::sqrt(dot(v, v, count));
  // Not std::max: a NaN must stay one.
  return 1.0f /
         (length < static_cast<float>(kSmallestValueNorm) ? static_cast<float>(kSmallestValueNorm) : length);
}

void exclusive_attention_rows(const ExclusiveAttention& op, std::int64_t begin, std::int64_t end) {
  const std::int64_t D = op.head_size(), G = op.group();
  for (std::int64_t n = begin; n < end; ++n)
    for (std::int64_t h = 0; h < op.at.heads; ++h) {
      const Row y = Row(op.y, n) + h * D;
      const Row v = Row(op.v, n) + h / G * D;
      const float inverse = inverse_length(v, D);
      const V32 share = all(-dot(y, v, D) * inverse * inverse);
      for_lanes(D, [&](auto at) HWY_ATTR {
        at.store(hn::MulAdd(share, at.load(v), at.load(y)), Row(op.z, n) + h * D);
      });
    }
}

// The factors of v in dy, and of y, dz and v in dv, of one head.
struct HeadFactors {
  float a, b, c;
};

HWY_INLINE HeadFactors head_factors(Row y, Row dz, Row v, float inverse, std::int64_t D) {
  const float yu = dot(y, v, D) * inverse, zu = dot(dz, v, D) * inverse;
  return {-zu * inverse, -yu * inverse, 2 * yu * zu * inverse * inverse};
}

// Heads of one group share dv: it is summed over up to 16 of them before it is stored.
void exclusive_attention_backward_rows(const ExclusiveAttention& op, std::int64_t begin, std::int64_t end) {
  constexpr std::int64_t kHeadsAtOnce = 16;
  const std::int64_t D = op.head_size(), G = op.group();
  for (std::int64_t n = begin; n < end; ++n)
    for (std::int64_t kv = 0; kv < op.at.kv_heads; ++kv) {
      const Row v = Row(op.v, n) + kv * D;
      const float inverse = inverse_length(v, D);
      for (std::int64_t g = 0; g < G; g += kHeadsAtOnce) {
        const std::int64_t heads = std::min(kHeadsAtOnce, G - g), column = (kv * G + g) * D;
        const Row y = Row(op.y, n) + column, dz = Row(op.dz, n) + column;
        HeadFactors of[kHeadsAtOnce];
        for (std::int64_t h = 0; h < heads; ++h) of[h] = head_factors(y + h * D, dz + h * D, v, inverse, D);
        for_lanes(D, [&](auto at) HWY_ATTR {
          const V32 value = at.load(v);
          V32 dv = hn::Zero(F32());
          for (std::int64_t h = 0; h < heads; ++h) {
            const V32 of_z = at.load(dz + h * D), a = all(of[h].a);
            if (op.dy) put(at, hn::MulAdd(a, value, of_z), Row(op.dy, n) + (column + h * D), op.add_dy);
            dv = hn::Add(dv, hn::MulAdd(a, at.load(y + h * D),
                                        hn::MulAdd(all(of[h].b), of_z, hn::Mul(all(of[h].c), value))));
          }
          if (op.dv) put(at, dv, Row(op.dv, n) + kv * D, op.add_dv || g > 0);
        });
      }
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
