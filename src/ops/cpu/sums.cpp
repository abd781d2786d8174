#include "ops/sums.h"

#include <vector>

#include "base/error.h"
#include "base/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/sums.cpp"
#include <hwy/foreach_target.h>

#include "ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thimble::cpu {
namespace HWY_NAMESPACE {

// a . b in f64.
double dot_in_f64(const float* a, const float* b, std::int64_t count) {
  const hn::ScalableTag<double> f64;
  const hn::Rebind<float, hn::ScalableTag<double>> f32;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(f64));
  const auto wide = [&](const float* from) HWY_ATTR { return hn::PromoteTo(f64, hn::LoadU(f32, from)); };
  // 4 accumulators hide the latency of the addition.
  auto sum0 = hn::Zero(f64), sum1 = sum0, sum2 = sum0, sum3 = sum0;
  std::int64_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    sum0 = hn::MulAdd(wide(a + i), wide(b + i), sum0);
    sum1 = hn::MulAdd(wide(a + i + lanes), wide(b + i + lanes), sum1);
    sum2 = hn::MulAdd(wide(a + i + 2 * lanes), wide(b + i + 2 * lanes), sum2);
    sum3 = hn::MulAdd(wide(a + i + 3 * lanes), wide(b + i + 3 * lanes), sum3);
  }
  double sum = hn::GetLane(hn::SumOfLanes(f64, hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3))));
  for (; i < count; ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

}  // namespace HWY_NAMESPACE
}  // namespace thimble::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thimble {

namespace ref {

double sum_of_squares(std::span<const float> values) {
  double sum = 0;
  for (float value : values) sum += static_cast<double>(value) * static_cast<double>(value);
  return sum;
}

double weighted_sum(std::span<const float> values, std::span<const float> weights) {
  double sum = 0;
  for (std::size_t i = 0; i < values.size(); ++i)
    sum += static_cast<double>(values[i]) * static_cast<double>(weights[i]);
  return sum;
}

}  // namespace ref

namespace cpu {

HWY_EXPORT(dot_in_f64);

// Sums fixed-size blocks, then adds the block sums in order.
double weighted_sum(std::span<const float> values, std::span<const float> weights) {
  check(values.size() == weights.size(), "[weighted_sum] {} values, {} weights", values.size(),
        weights.size());
  constexpr std::int64_t kBlock = 65536;
  const auto count = static_cast<std::int64_t>(values.size());
  std::vector<double> partial(static_cast<std::size_t>((count + kBlock - 1) / kBlock));
  parallel_for(count, kBlock, [&](std::int64_t begin, std::int64_t end) {
    partial[static_cast<std::size_t>(begin / kBlock)] =
        HWY_DYNAMIC_DISPATCH(dot_in_f64)(values.data() + begin, weights.data() + begin, end - begin);
  });
  double sum = 0;
  for (double part : partial) sum += part;
  return sum;
}

double sum_of_squares(std::span<const float> values) {
  return weighted_sum(values, values);
}

}  // namespace cpu

}  // namespace thimble
#endif
