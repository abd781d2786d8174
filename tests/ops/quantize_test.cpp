// The quantizer's rules, compared with a slow implementation of the header.
#include "ops/quantize.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/rng.h"
#include "tensor/tensor.h"

namespace thimble {
namespace {

struct Quantized {
  std::vector<std::int8_t> q;
  float scale = 0;
};

Quantized quantize(const std::vector<float>& row, int bits) {
  Quantized result{std::vector<std::int8_t>(row.size(), 99), 0};
  result.scale = quantize_row(row, bits, result.q);
  return result;
}

// Half to even, without using the library function.
double round_half_even(double x) {
  const double below = std::floor(x), rest = x - below;
  if (rest != 0.5) return rest < 0.5 ? below : below + 1;
  return std::fmod(below, 2) == 0 ? below : below + 1;
}

float f16_rounded(float x) {
  return to_f32(to_f16(x));
}

float slow_quantile(std::vector<float> values, double fraction) {
  for (float& value : values) value = std::abs(value);
  std::ranges::sort(values);
  const float place = static_cast<float>(fraction) * static_cast<float>(values.size() - 1);
  const auto below = static_cast<std::size_t>(std::floor(place));
  const std::size_t above = std::min(below + 1, values.size() - 1);
  const float share = place - std::floor(place), width = values[above] - values[below];
  return share < 0.5f ? values[below] + share * width : values[above] - width * (1 - share);
}

Quantized slow_quantize(const std::vector<float>& row, int bits) {
  Quantized result;
  if (bits == 8) {
    const float clip = slow_quantile(row, 0.9999984);
    const float scale = std::max(clip, 1.0f) / 127.0f;
    for (float w : row) {
      const float clipped = w > clip ? clip : w < -clip ? -clip : w;
      result.q.push_back(static_cast<std::int8_t>(round_half_even(clipped / scale)));
    }
    result.scale = f16_rounded(scale);
    return result;
  }
  const float highest = bits == 6 ? 31 : 15;
  float largest = 0;
  for (float w : row) largest = std::abs(w) > largest ? std::abs(w) : largest;
  result.scale = f16_rounded(largest / highest);
  for (float w : row) {
    const double steps = result.scale > 0 ? round_half_even(w / result.scale) : 0;
    result.q.push_back(static_cast<std::int8_t>(steps > highest        ? highest
                                                : steps < -highest - 1 ? -highest - 1
                                                                       : steps));
  }
  return result;
}

std::vector<float> random_row(std::size_t count, float deviation, std::uint64_t seed) {
  std::vector<float> row(count);
  Rng rng(seed);
  for (float& w : row) w = deviation * rng.normal();
  return row;
}

TEST(Quantize, MatchesTheDocumentedRule) {
  std::uint64_t seed = 0;
  for (const int bits : {8, 6, 5})
    for (const std::size_t count : {1u, 2u, 3u, 17u, 64u, 512u, 1000u})
      for (const float deviation :
           {1e-3f, 0.02f, 0.05f, 0.5f, 0.8f, 1.0f, 1.5f, 3.0f, 10.0f, 100.0f, 300.0f}) {
        SCOPED_TRACE(fmt::format("{} bits, {} values of deviation {}", bits, count, deviation));
        const std::vector<float> row = random_row(count, deviation, ++seed);
        const Quantized expected = slow_quantize(row, bits), found = quantize(row, bits);
        EXPECT_EQ(found.q, expected.q);
        EXPECT_EQ(found.scale, expected.scale);
      }
}

TEST(Quantize, RoundsHalfToEven) {
  // With a maximum of 31 the scale is exactly 1, so halves stay halves.
  const Quantized six = quantize({31, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -2.5f, 30.5f}, 6);
  EXPECT_EQ(six.scale, 1);
  EXPECT_EQ(six.q, (std::vector<std::int8_t>{31, 0, 2, 2, 0, -2, -2, 30}));
}

TEST(Quantize, EightBitScaleIsAtLeastOneOver127) {
  const Quantized small = quantize({0.6f, -0.25f, 0.001f}, 8);
  EXPECT_EQ(small.scale, f16_rounded(1.0f / 127));
  EXPECT_EQ(small.q, (std::vector<std::int8_t>{76, -32, 0}));  // 76.2 and -31.75, not 127
  // Above 1, the row's clip determines the scale, and the maximum gets the last level.
  const Quantized large = quantize({254, -254, 1}, 8);
  EXPECT_NEAR(large.scale, 2, 2e-3);
  EXPECT_EQ(large.q[0], 127);
  EXPECT_EQ(large.q[1], -127) << "8 bits are symmetric: -128 is not used";
}

TEST(Quantize, EightBitsRoundWithTheF32Scale) {
  // 500/127 is not exact in f16: some values of a long row round differently with the two scales.
  std::vector<float> row(2001);
  for (std::size_t i = 0; i < row.size(); ++i) row[i] = 0.5f * static_cast<float>(i) - 500;
  const Quantized found = quantize(row, 8);
  const float clip = slow_quantile(row, 0.9999984);
  bool differs = false;
  for (std::size_t i = 0; i < row.size(); ++i) {
    const float clipped = std::clamp(row[i], -clip, clip);
    EXPECT_EQ(found.q[i], round_half_even(clipped / (clip / 127.0f))) << row[i];
    differs |= found.q[i] != round_half_even(clipped / found.scale);
  }
  EXPECT_TRUE(differs) << "the two scales give the same result for this row";
}

TEST(Quantize, FiveAndSixBitsRoundWithTheStoredScaleAndClamp) {
  // If max/31 is rounded down to f16, the maximum may exceed the last level and must be clamped.
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    std::vector<float> row = random_row(9, 1, seed);
    for (const int bits : {6, 5}) {
      const Quantized found = quantize(row, bits);
      const int highest = bits == 6 ? 31 : 15;
      EXPECT_EQ(f16_rounded(found.scale), found.scale);
      EXPECT_LE(*std::ranges::max_element(found.q), highest);
      EXPECT_GE(*std::ranges::min_element(found.q), -highest - 1);
    }
  }
}

TEST(Quantize, ARowOfZerosGivesZeros) {
  for (const int bits : {8, 6, 5}) {
    const Quantized found = quantize({0, -0.0f, 0}, bits);
    EXPECT_EQ(found.q, (std::vector<std::int8_t>{0, 0, 0}));
    EXPECT_TRUE(std::isfinite(found.scale));
    EXPECT_TRUE(quantize({}, bits).q.empty());
  }
  // Values so small that the f16 scale is zero.
  EXPECT_EQ(quantize({1e-9f, -1e-9f}, 6).q, (std::vector<std::int8_t>{0, 0}));
  EXPECT_EQ(quantize({1e-9f, -1e-9f}, 6).scale, 0);
}

TEST(Quantize, NanAndInfinityMakeTheScaleNan) {
  for (const int bits : {8, 6, 5})
    for (const float bad : {std::nanf(""), HUGE_VALF, -HUGE_VALF}) {
      const Quantized found = quantize({1, bad, 2}, bits);
      EXPECT_TRUE(std::isnan(found.scale));
      EXPECT_EQ(found.q, (std::vector<std::int8_t>{0, 0, 0}));
    }
}

TEST(Quantize, AScaleTooLargeForF16IsNotFinite) {
  // The maximum of f16 is 65504: the scale becomes infinite, and q * scale is not finite.
  const Quantized found = quantize({1e7f, 0}, 6);
  EXPECT_FALSE(std::isfinite(found.scale));
  EXPECT_FALSE(std::isfinite(found.scale * static_cast<float>(found.q[0])));
}

TEST(Quantize, RejectsOtherBitsAndSizes) {
  const std::vector<float> row = {1, 2};
  std::vector<std::int8_t> q(2), too_few(1);
  for (const int bits : {0, 4, 7, 16}) EXPECT_THROW(quantize_row(row, bits, q), Error);
  EXPECT_THROW(quantize_row(row, 8, too_few), Error);
}

// The packer's clips, implemented from the header.
Quantized slow_clipped(const std::vector<float>& row, int bits, float clip) {
  Quantized result;
  const float highest = bits == 8 ? 127 : bits == 6 ? 31 : 15;
  result.scale = f16_rounded(clip / highest);
  for (float w : row) {
    const double steps = result.scale > 0 ? round_half_even(w / result.scale) : 0;
    result.q.push_back(static_cast<std::int8_t>(steps > highest    ? highest
                                                : steps < -highest ? -highest
                                                                   : steps));
  }
  return result;
}

double slow_error(const std::vector<float>& row, const Quantized& quantized) {
  double sum = 0;
  for (std::size_t i = 0; i < row.size(); ++i) {
    const double error = double{row[i]} - double{quantized.scale * static_cast<float>(quantized.q[i])};
    sum += error * error;
  }
  return sum;
}

float slow_deviation(const std::vector<float>& row) {
  double sum = 0, squares = 0;
  for (float w : row) sum += w;
  const double mean = sum / static_cast<double>(row.size());
  for (float w : row) squares += (w - mean) * (w - mean);
  return row.size() < 2 ? 0 : static_cast<float>(std::sqrt(squares / static_cast<double>(row.size() - 1)));
}

float slow_largest(const std::vector<float>& row) {
  float largest = 0;
  for (float w : row) largest = std::max(largest, std::abs(w));
  return largest;
}

Quantized slow_search(const std::vector<float>& row, int bits) {
  Quantized best = slow_clipped(row, bits, slow_quantile(row, 1));
  for (const double quantile : {0.99999, 0.9999, 0.9995, 0.999}) {
    Quantized other = slow_clipped(row, bits, slow_quantile(row, quantile));
    if (slow_error(row, other) < slow_error(row, best)) best = std::move(other);
  }
  return best;
}

TEST(Quantize, ClipsMatchTheDocumentedRule) {
  std::uint64_t seed = 1000;
  int narrower = 0;
  for (const int bits : {8, 6, 5})
    for (const std::size_t count : {1u, 2u, 3u, 17u, 64u, 512u, 2000u})
      for (const float deviation : {1e-7f, 1e-3f, 0.05f, 1.0f, 30.0f, 1e5f}) {
        SCOPED_TRACE(fmt::format("{} bits, {} values of deviation {}", bits, count, deviation));
        std::vector<float> row = random_row(count, deviation, ++seed);
        row[count / 2] *= 10;  // an outlier that is worth clipping
        Quantized found{std::vector<std::int8_t>(count, 99), 0}, expected = slow_search(row, bits);
        found.scale = quantize_row(row, {.bits = bits, .clip = Clip::search}, found.q);
        EXPECT_EQ(found.q, expected.q);
        EXPECT_EQ(found.scale, expected.scale);
        narrower += found.scale < f16_rounded(slow_largest(row) / (bits == 8 ? 127 : bits == 6 ? 31 : 15));
        for (const float k : {2.5f, 12.85f}) {
          const float spread = slow_deviation(row);
          expected = slow_clipped(row, bits, spread > 0 ? k * spread : slow_largest(row));
          found.scale = quantize_row(row, {.bits = bits, .clip = Clip::deviation, .deviations = k}, found.q);
          EXPECT_EQ(found.q, expected.q);
          EXPECT_EQ(found.scale, expected.scale);
        }
      }
  EXPECT_GT(narrower, 10) << "too few rows were clipped";
}

TEST(Quantize, AConstantRowKeepsItsValue) {
  const std::vector<float> row = {0.5f, 0.5f, 0.5f};
  std::vector<std::int8_t> q(3);
  const float scale = quantize_row(row, {.bits = 6, .clip = Clip::deviation, .deviations = 12.85f}, q);
  EXPECT_NEAR(scale * static_cast<float>(q[0]), 0.5f, 1e-3f);
}

TEST(Quantize, ATensorHasOneScaleWithoutAMinimum) {
  const auto whole = [](const std::vector<float>& values) {
    Quantized result{std::vector<std::int8_t>(values.size(), 99), 0};
    result.scale = quantize_tensor(values, result.q);
    return result;
  };
  for (const float deviation : {1e-3f, 0.5f, 1e7f}) {
    const std::vector<float> values = random_row(1000, deviation, 7);
    const Quantized found = whole(values);
    const float clip = slow_quantile(values, 0.9999984);
    EXPECT_EQ(found.scale, clip / 127.0f) << "the scale must be f32, not f16";
    for (std::size_t i = 0; i < values.size(); ++i)
      EXPECT_EQ(found.q[i], round_half_even(std::clamp(values[i], -clip, clip) / found.scale));
  }
  EXPECT_EQ(whole({0, 0}).scale, 1);
  EXPECT_EQ(whole({1e-45f, 0}).scale, 1) << "a scale of 0 would cause a division by 0";
  EXPECT_EQ(whole({1e-45f, 0}).q, (std::vector<std::int8_t>{0, 0}));
  EXPECT_TRUE(std::isnan(whole({1, std::nanf("")}).scale));
}

TEST(Quantile, InterpolatesBetweenSortedMagnitudes) {
  const std::vector<float> values = {-4, 1, 3, -2, 0};
  EXPECT_EQ(quantile_of_magnitudes(values, 0), 0);
  EXPECT_EQ(quantile_of_magnitudes(values, 0.5), 2);
  EXPECT_EQ(quantile_of_magnitudes(values, 0.625), 2.5f);
  EXPECT_EQ(quantile_of_magnitudes(values, 1), 4);
  EXPECT_EQ(quantile_of_magnitudes({}, 0.5), 0);
  EXPECT_TRUE(std::isnan(quantile_of_magnitudes(std::vector<float>{1, std::nanf(""), 2}, 0)));
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const std::vector<float> row = random_row(1 + seed * 7, 1, seed);
    for (const double fraction : {0.0, 0.03, 0.5, 0.9, 0.9999984, 1.0})
      EXPECT_EQ(quantile_of_magnitudes(row, fraction), slow_quantile(row, fraction))
          << row.size() << " " << fraction;
  }
}

}  // namespace
}  // namespace thimble
