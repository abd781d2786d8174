#include "qa/tensor_stats.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace thimble {

namespace {

constexpr double kShownDeviations = 3;

template <class Body>
void for_finite(std::span<const std::span<const float>> parts, Body body) {
  for (const std::span<const float> part : parts)
    for (const float value : part)
      if (std::isfinite(value)) body(double{value});
}

void fill_histogram(std::span<const std::span<const float>> parts, TensorStats& stats) {
  const double low = stats.mean - kShownDeviations * stats.deviation;
  const double width = 2 * kShownDeviations * stats.deviation / kHistogramBins;
  for_finite(parts, [&](double value) {
    const double bin = width > 0 ? (value - low) / width : kHistogramBins / 2.0;
    ++stats.histogram[static_cast<std::size_t>(std::clamp(bin, 0.0, kHistogramBins - 1.0))];
  });
}

}  // namespace

TensorStats stats_of(std::span<const std::span<const float>> parts) {
  TensorStats stats;
  for (const std::span<const float> part : parts) stats.count += static_cast<std::int64_t>(part.size());
  double sum = 0, least = std::numeric_limits<double>::infinity(), most = -least;
  std::int64_t finite = 0;
  for_finite(parts, [&](double value) {
    ++finite;
    stats.zeros += value == 0;
    sum += value;
    least = std::min(least, value);
    most = std::max(most, value);
  });
  stats.not_finite = stats.count - finite;
  if (finite == 0) return stats;
  stats.least = least;
  stats.most = most;
  stats.mean = sum / static_cast<double>(finite);
  double squares = 0;  // a second pass: the mean may be far from 0
  for_finite(parts, [&](double value) { squares += (value - stats.mean) * (value - stats.mean); });
  stats.deviation = std::sqrt(squares / static_cast<double>(finite));
  fill_histogram(parts, stats);
  return stats;
}

TensorStats stats_of(std::span<const float> values) {
  return stats_of(std::span(&values, 1));
}

}  // namespace thimble
