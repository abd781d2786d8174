#include "tensor/tensor.h"

#include <cmath>
#include <cstdlib>
#include <limits>

namespace thimble {
namespace {

// The exact value of a stored number, computed from the definition of the format.
double exact_value(std::uint16_t bits, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const double sign = bits & 0x8000 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) return mantissa ? NAN : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits);
}

struct Bf16 {
  static double exact(std::uint16_t bits) { return exact_value(bits, 8, 7); }
  static float decode(std::uint16_t bits) { return to_f32(bf16{bits}); }
  static std::uint16_t encode(float value) { return to_bf16(value).bits; }
  static constexpr std::uint16_t kInfinity = 0x7F80;
};

struct F16 {
  static double exact(std::uint16_t bits) { return exact_value(bits, 5, 10); }
  static float decode(std::uint16_t bits) { return to_f32(f16{bits}); }
  static std::uint16_t encode(float value) { return to_f16(value).bits; }
  static constexpr std::uint16_t kInfinity = 0x7C00;
};

template <class Format>
class HalfFormats : public testing::Test {};
using Formats = testing::Types<Bf16, F16>;
TYPED_TEST_SUITE(HalfFormats, Formats);

TYPED_TEST(HalfFormats, EveryStoredValueRoundTripsExactly) {
  for (int i = 0; i < 0x10000; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    const double exact = TypeParam::exact(bits);
    const float decoded = TypeParam::decode(bits);
    if (std::isnan(exact)) {
      ASSERT_TRUE(std::isnan(decoded)) << i;
      ASSERT_TRUE(std::isnan(TypeParam::decode(TypeParam::encode(decoded)))) << i;
      ASSERT_EQ(TypeParam::encode(decoded) & 0x8000, bits & 0x8000) << i;
    } else {
      ASSERT_EQ(static_cast<double>(decoded), exact) << i;
      ASSERT_EQ(TypeParam::encode(decoded), bits) << i;
    }
  }
}

// For every pair of neighbours: just below the midpoint rounds down, just above rounds up, the
// midpoint to even.
TYPED_TEST(HalfFormats, RoundsToNearestAndTiesToEven) {
  for (int i = 0; i < TypeParam::kInfinity; ++i) {
    const auto low = static_cast<std::uint16_t>(i), high = static_cast<std::uint16_t>(i + 1);
    const double below = TypeParam::exact(low);
    const double above =
        high == TypeParam::kInfinity ? 2 * below - TypeParam::exact(low - 1) : TypeParam::exact(high);
    const auto middle = static_cast<float>((below + above) / 2);
    ASSERT_EQ(static_cast<double>(middle), (below + above) / 2) << "the middle is exact in f32";
    ASSERT_EQ(TypeParam::encode(middle), i % 2 == 0 ? low : high) << i;
    ASSERT_EQ(TypeParam::encode(std::nextafterf(middle, 0.0f)), low) << i;
    ASSERT_EQ(TypeParam::encode(std::nextafterf(middle, INFINITY)), high) << i;
    ASSERT_EQ(TypeParam::encode(-middle), TypeParam::encode(middle) | 0x8000) << i;
  }
}

TYPED_TEST(HalfFormats, PreservesInfinityAndNan) {
  EXPECT_EQ(TypeParam::encode(INFINITY), TypeParam::kInfinity);
  EXPECT_EQ(TypeParam::encode(-INFINITY), TypeParam::kInfinity | 0x8000);
  // NaNs whose upper mantissa bits are all zeros or all ones are those that careless rounding
  // changes into another value.
  for (std::uint32_t bits : {0x7F800001u, 0x7FFFFFFFu, 0xFF800001u, 0xFFFFFFFFu, 0x7FC00000u})
    EXPECT_TRUE(std::isnan(TypeParam::decode(TypeParam::encode(std::bit_cast<float>(bits))))) << bits;
}

}  // namespace
}  // namespace thimble
