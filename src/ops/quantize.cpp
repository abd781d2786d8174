#include "ops/quantize.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "base/error.h"
#include "tensor/tensor.h"

namespace thimble {

namespace {

constexpr double kInt8ClipQuantile = 0.9999984;
constexpr std::array kSearchedQuantiles = {1.0, 0.99999, 0.9999, 0.9995, 0.999};
constexpr float kNoClip = std::numeric_limits<float>::infinity();

bool all_finite(std::span<const float> values) {
  return std::ranges::all_of(values, [](float value) { return std::isfinite(value); });
}

float largest_magnitude(std::span<const float> row) {
  float largest = 0;
  for (float w : row) largest = std::max(largest, std::abs(w));
  return largest;
}

void round_all(std::span<const float> row, const Rounding& by, std::span<std::int8_t> q) {
  // Adding and subtracting 1.5 * 2^23 rounds half to even, like nearbyint, without a function call.
  constexpr float kMagic = 12582912.0f;
  for (std::size_t i = 0; i < row.size(); ++i) {
    const float steps = (std::clamp(row[i], -by.clip, by.clip) / by.scale + kMagic) - kMagic;
    q[i] = static_cast<std::int8_t>(std::clamp(steps, by.lowest, by.highest));
  }
}

Rounding int8_rounding(float clip) {
  const float scale = std::max(clip / 127.0f, 1.0f / 127.0f);
  return {clip, scale, -127, 127, to_f32(to_f16(scale))};
}

// Rounding with the f16 scale that is stored.
Rounding rounding_by(float scale, float lowest, float highest) {
  scale = to_f32(to_f16(scale));
  return {kNoClip, scale, lowest, highest, scale};
}

Rounding narrow_rounding(float largest, float highest) {
  return rounding_by(largest / highest, -highest - 1, highest);
}

float quantize_by(const Rounding& by, std::span<const float> row, std::span<std::int8_t> q) {
  if (by.scale == 0)
    std::ranges::fill(q, std::int8_t{0});
  else
    round_all(row, by, q);
  return by.stored;
}

double squared_error(std::span<const float> row, float scale, std::span<const std::int8_t> q) {
  double sum = 0;
  for (std::size_t i = 0; i < row.size(); ++i) {
    const double error = double{row[i]} - double{scale * static_cast<float>(q[i])};
    sum += error * error;
  }
  return sum;
}

float quantize_searched(std::span<const float> row, float highest, std::span<std::int8_t> q) {
  std::vector<std::int8_t> tried(row.size());
  float best_scale = 0;
  double least = std::numeric_limits<double>::infinity();
  for (const double quantile : kSearchedQuantiles) {  // the widest comes first and wins ties
    const float clip = quantile_of_magnitudes(row, quantile);
    const float scale = quantize_by(rounding_by(clip / highest, -highest, highest), row, tried);
    const double error = squared_error(row, scale, tried);
    if (quantile != kSearchedQuantiles.front() && !(error < least)) continue;
    least = error;
    best_scale = scale;
    std::ranges::copy(tried, q.begin());
  }
  return best_scale;
}

float standard_deviation(std::span<const float> row) {
  if (row.size() < 2) return 0;
  double mean = 0, squares = 0;
  for (float w : row) mean += w;
  mean /= static_cast<double>(row.size());
  for (float w : row) squares += (w - mean) * (w - mean);
  return static_cast<float>(std::sqrt(squares / static_cast<double>(row.size() - 1)));
}

float quantize_by_deviation(std::span<const float> row, float deviations, float highest,
                            std::span<std::int8_t> q) {
  const float deviation = standard_deviation(row);
  const float clip = deviation > 0 ? deviations * deviation : largest_magnitude(row);
  return quantize_by(rounding_by(clip / highest, -highest, highest), row, q);
}

float highest_level(int bits) {
  check(bits == 8 || bits == 6 || bits == 5, "[quantize] expected 8, 6 or 5 bits, got {}", bits);
  return static_cast<float>((1 << (bits - 1)) - 1);
}

struct Neighbours {
  float low, high;
};

// The |values| at `index` and `index + 1` of ascending order.
Neighbours neighbours_in_order(std::span<const float> values, std::size_t index) {
  if (index + 2 == values.size()) {  // a quantile near 1 of a row of weights: no sort needed
    Neighbours most{0, 0};
    for (float value : values) {
      most.low = std::max(most.low, std::min(most.high, std::abs(value)));
      most.high = std::max(most.high, std::abs(value));
    }
    return most;
  }
  std::vector<float> magnitudes(values.size());
  std::ranges::transform(values, magnitudes.begin(), [](float value) { return std::abs(value); });
  const auto middle = magnitudes.begin() + static_cast<std::ptrdiff_t>(index);
  std::ranges::nth_element(magnitudes, middle);
  return {*middle, *std::min_element(middle + 1, magnitudes.end())};
}

// The position of a quantile among sorted values. f32, to match torch.quantile bit for bit.
struct QuantilePosition {
  std::size_t below;
  float share;  // fraction of the distance to the next value
};

QuantilePosition quantile_position(double fraction, std::size_t count) {
  const float index = static_cast<float>(fraction) * static_cast<float>(count - 1);
  const auto below = static_cast<std::size_t>(index);
  return {below, index - static_cast<float>(below)};
}

// Interpolates from the nearer end, as torch.quantile does.
float between(float low, float high, float share) {
  return share < 0.5f ? low + share * (high - low) : high - (high - low) * (1 - share);
}

}  // namespace

float quantile_of_magnitudes(std::span<const float> values, double fraction) {
  if (values.empty()) return 0;
  for (float value : values)
    if (std::isnan(value)) return std::abs(value);
  const auto [below, share] = quantile_position(fraction, values.size());
  if (below + 1 == values.size()) return largest_magnitude(values);
  const auto [low, high] = neighbours_in_order(values, below);
  return between(low, high, share);
}

std::optional<Rounding> rounding_by_largest(int bits, std::size_t count, float largest, float second) {
  if (bits != 8) return narrow_rounding(largest, highest_level(bits));
  const auto [below, share] = quantile_position(kInt8ClipQuantile, count);
  if (below + 1 == count) return int8_rounding(largest);
  if (below + 2 == count) return int8_rounding(between(second, largest, share));
  return std::nullopt;
}

float quantize_row(std::span<const float> row, const QuantizeRule& rule, std::span<std::int8_t> q) {
  check(q.size() == row.size(), "[quantize] expected {} outputs for the row, got {}", row.size(), q.size());
  const float highest = highest_level(rule.bits);
  if (!all_finite(row)) {
    std::ranges::fill(q, std::int8_t{0});
    return std::numeric_limits<float>::quiet_NaN();
  }
  switch (rule.clip) {
    case Clip::search:
      return quantize_searched(row, highest, q);
    case Clip::deviation:
      return quantize_by_deviation(row, rule.deviations, highest, q);
    case Clip::standard:
      break;
  }
  const Rounding by = rule.bits == 8 ? int8_rounding(quantile_of_magnitudes(row, kInt8ClipQuantile))
                                     : narrow_rounding(largest_magnitude(row), highest);
  return quantize_by(by, row, q);
}

float quantize_tensor(std::span<const float> values, std::span<std::int8_t> q) {
  check(q.size() == values.size(), "[quantize] expected {} outputs for the tensor, got {}", values.size(),
        q.size());
  if (!all_finite(values)) {
    std::ranges::fill(q, std::int8_t{0});
    return std::numeric_limits<float>::quiet_NaN();
  }
  const float clip = quantile_of_magnitudes(values, kInt8ClipQuantile);
  float scale = clip / 127.0f;
  if (scale == 0) scale = 1;
  round_all(values, {clip, scale, -127, 127, scale}, q);
  return scale;
}

}  // namespace thimble
