#include "ops/cached_attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "ops/cpu/attention_tiles.h"
#include "ops/cpu/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/cached_attention.cpp"
#include <hwy/foreach_target.h>

#include "ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thimble::cpu {
namespace HWY_NAMESPACE {

// One query head over all its slot holds: a running softmax over blocks of keys that start at position 0, so
// the order of sums depends on the position alone. `y` collects in f32.
template <class T>
HWY_INLINE void attend(const CachedAttention& op, std::int64_t n, std::int64_t h, float* y) {
  constexpr std::int64_t kBlock = 64;
  const std::int64_t D = op.head_size(), column = h / op.group() * D;
  const std::int64_t slot = *op.slot.row<std::int32_t>(n) * std::int64_t{op.at.context};
  const std::int64_t keys = *op.position.row<std::int32_t>(n) + std::int64_t{1};
  const T* q = op.q.row<T>(n) + h * D;
  std::fill_n(y, D, 0.0f);
  float highest = -std::numeric_limits<float>::infinity(), sum = 0;
  for (std::int64_t begin = 0; begin < keys; begin += kBlock) {
    const std::int64_t count = std::min(kBlock, keys - begin);
    float weight[kBlock];
    float now = highest;
    for (std::int64_t m = 0; m < count; ++m) {
      weight[m] = op.at.scale * dot(q, op.k_cache.row<T>(slot + begin + m) + column, D);
      now = std::max(weight[m], now);
    }
    const float keep = begin == 0 ? 0.0f : std::exp(highest - now);
    sum *= keep;
    for_lanes(D, [&](auto at) HWY_ATTR { at.store(hn::Mul(at.load(y), all(keep)), y); });
    sum += sum_lanes(count, [&](auto at) HWY_ATTR {
      const V32 p = at.or_zero(exp_lanes(hn::Sub(at.load(weight), all(now))));
      at.store(p, weight);
      return p;
    });
    for (std::int64_t m = 0; m < count; ++m)
      add_multiple(weight[m], op.v_cache.row<T>(slot + begin + m) + column, y, D);
    highest = now;
  }
  for_lanes(D, [&](auto at) HWY_ATTR { at.store(hn::Div(at.load(y), all(sum)), op.y.row<T>(n) + h * D); });
}

void attend_cached(const CachedAttention& op, std::int64_t n, std::int64_t h, float* y) {
  op.q.dtype == DType::bf16 ? attend<bf16>(op, n, h, y) : attend<float>(op, n, h, y);
}

}  // namespace HWY_NAMESPACE
}  // namespace thimble::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thimble::cpu {

HWY_EXPORT(attend_cached);

void cached_attention_forward(const Context&, const OpCall& call) {
  const CachedAttention op(call);
  const auto row_bytes = [](const Tensor& tensor, std::int64_t row) {
    return static_cast<std::byte*>(tensor.data) + row * tensor.stride * dtype_bytes(tensor.dtype);
  };
  const auto bytes = static_cast<std::size_t>(op.k.cols * dtype_bytes(op.k.dtype));
  for (std::int64_t n = 0; n < op.q.rows; ++n) {
    const std::int64_t row =
        *op.slot.row<std::int32_t>(n) * std::int64_t{op.at.context} + *op.position.row<std::int32_t>(n);
    std::memcpy(row_bytes(op.k_cache, row), row_bytes(op.k, n), bytes);
    std::memcpy(row_bytes(op.v_cache, row), row_bytes(op.v, n), bytes);
  }
  const ThreadScratch results(call.scratch, cached_attention_thread_bytes(op.head_size()),
                              "cached_attention");
  parallel_tasks(op.q.rows * op.at.heads, [&](std::int64_t task) {
    HWY_DYNAMIC_DISPATCH(attend_cached)
    (op, task / op.at.heads, task % op.at.heads, reinterpret_cast<float*>(results.mine()));
  });
}

}  // namespace thimble::cpu
#endif
