// What a tensor's numbers look like: the figures and the shape of their distribution.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace thimble {

inline constexpr std::size_t kHistogramBins = 24;

// Of the finite values; 0 where there are none.
struct TensorStats {
  std::int64_t count = 0;
  std::int64_t zeros = 0;
  std::int64_t not_finite = 0;  // NaN or infinite
  double mean = 0, deviation = 0, least = 0, most = 0;
  // How many lie in each of equal parts of [mean - 3 deviations, mean + 3 deviations]; those beyond count in the
  // outermost.
  std::array<double, kHistogramBins> histogram{};

  bool all_zero() const { return count > 0 && zeros == count; }
};

TensorStats stats_of(std::span<const float> values);
// Of many tensors as one.
TensorStats stats_of(std::span<const std::span<const float>> parts);

}  // namespace thimble
