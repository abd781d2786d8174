#include "ops/quantise.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/error.h"
#include "base/half.h"

namespace thimble {

namespace {

constexpr double kInt8ClipQuantile = 0.9999984;

float largest_magnitude(std::span<const float> row) {
  float largest = 0;
  for (float w : row) largest = std::max(largest, std::abs(w));
  return largest;
}

void round_all(std::span<const float> row, float scale, float clip, float lowest, float highest,
               std::span<std::int8_t> q) {
  for (std::size_t i = 0; i < row.size(); ++i) {
    const float steps = std::nearbyintf(std::clamp(row[i], -clip, clip) / scale);
    q[i] = static_cast<std::int8_t>(std::clamp(steps, lowest, highest));
  }
}

float quantise_int8(std::span<const float> row, std::span<std::int8_t> q) {
  const float clip = quantile_of_magnitudes(row, kInt8ClipQuantile);
  const float scale = std::max(clip / 127.0f, 1.0f / 127.0f);
  round_all(row, scale, clip, -127, 127, q);
  return to_f32(to_f16(scale));
}

float quantise_narrow(std::span<const float> row, float highest, std::span<std::int8_t> q) {
  const float scale = to_f32(to_f16(largest_magnitude(row) / highest));
  if (scale == 0) {
    std::ranges::fill(q, std::int8_t{0});
    return 0;
  }
  round_all(row, scale, std::numeric_limits<float>::infinity(), -highest - 1, highest, q);
  return scale;
}

}  // namespace

float quantile_of_magnitudes(std::span<const float> values, double fraction) {
  if (values.empty()) return 0;
  std::vector<float> magnitudes(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    magnitudes[i] = std::abs(values[i]);
    if (std::isnan(magnitudes[i])) return magnitudes[i];
  }
  // The place, too, is f32, and the interpolation starts from the nearer end: torch.quantile to the bit.
  const float place = static_cast<float>(fraction) * static_cast<float>(values.size() - 1);
  const auto below = static_cast<std::ptrdiff_t>(place);
  std::ranges::nth_element(magnitudes, magnitudes.begin() + below);
  const float low = magnitudes[static_cast<std::size_t>(below)];
  if (static_cast<std::size_t>(below) + 1 == values.size()) return low;
  const float high = *std::min_element(magnitudes.begin() + below + 1, magnitudes.end());
  const float share = place - static_cast<float>(below);
  return share < 0.5f ? low + share * (high - low) : high - (high - low) * (1 - share);
}

float quantise_row(std::span<const float> row, int bits, std::span<std::int8_t> q) {
  check(q.size() == row.size(), "[quantise] {} values into a row of {}", row.size(), q.size());
  if (!std::ranges::all_of(row, [](float w) { return std::isfinite(w); })) {
    std::ranges::fill(q, std::int8_t{0});
    return std::numeric_limits<float>::quiet_NaN();
  }
  switch (bits) {
    case 8:
      return quantise_int8(row, q);
    case 6:
      return quantise_narrow(row, 31, q);
    case 5:
      return quantise_narrow(row, 15, q);
    default:
      fail("[quantise] expected 8, 6 or 5 bits, got {}", bits);
  }
}

}  // namespace thimble
