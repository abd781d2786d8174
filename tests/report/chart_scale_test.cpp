#include "report/chart.h"

#include <cmath>
#include <limits>

namespace thimble {
namespace {

TEST(Scale, TicksAreRoundAndInsideTheRange) {
  EXPECT_EQ((Scale{0, 10}.ticks(5)), (std::vector<double>{0, 2, 4, 6, 8, 10}));
  for (const Scale& scale : {Scale{0, 1}, Scale{-3, 7e6}, Scale{1.23, 1.27}, Scale{0.4, 8.1, true},
                             Scale{1e-5, 3e4, true}, Scale{1.5, 6, true}}) {
    const std::vector<double> ticks = scale.ticks(6);
    EXPECT_GE(ticks.size(), 2u) << scale.low;
    EXPECT_LE(ticks.size(), 7u) << scale.low;
    for (const double tick : ticks) {
      EXPECT_GE(scale.place_of(tick), -1e-9);
      EXPECT_LE(scale.place_of(tick), 1 + 1e-9);
    }
  }
}

TEST(Scale, IsLogarithmicOnlyForLargePositiveRanges) {
  EXPECT_TRUE(scale_around({1, 8}, {.logarithmic = true}).logarithmic);
  EXPECT_FALSE(scale_around({1, 2}, {.logarithmic = true}).logarithmic);
  EXPECT_FALSE(scale_around({0, 8}, {.logarithmic = true}).logarithmic);
  EXPECT_NEAR((Scale{1, 100, true}.place_of(10)), 0.5, 1e-12);
}

TEST(Scale, HandlesNoValuesAndEqualValues) {
  EXPECT_EQ(scale_around({}, {}).high, 1);
  EXPECT_EQ(scale_around({NAN, INFINITY}, {}).high, 1);
  const Scale one = scale_around({5, 5}, {});
  EXPECT_LT(one.low, 5);
  EXPECT_GT(one.high, 5);
  EXPECT_EQ(scale_around({3, 4}, {.from_zero = true}).low, 0);
}

// A constant loss may differ by an ulp or two from step to step.
TEST(Scale, TreatsRoundingDifferencesAsEqual) {
  for (const double value : {2.0, -2.0, 1e-300, 1e300}) {
    const double next = std::nextafter(std::nextafter(value, INFINITY), INFINITY);
    EXPECT_LE((Scale{value, next}.ticks(6)).size(), 7u) << value;
    const Scale scale = scale_around({value, next}, {});
    EXPECT_LT(scale.low, value * (value > 0 ? 0.95 : 1.05)) << value;
    EXPECT_GE(scale.ticks(6).size(), 2u) << value;
    EXPECT_LE(scale.ticks(6).size(), 7u) << value;
  }
}

TEST(Scale, HandlesTheLimitsOfDouble) {
  const double tiny = std::numeric_limits<double>::denorm_min(), huge = std::numeric_limits<double>::max();
  for (const bool logarithmic : {false, true})
    for (const std::vector<double>& values : {std::vector<double>{tiny, huge},
                                              {1e-307, huge},
                                              {-huge, huge},
                                              {huge, huge},
                                              {tiny, 2 * tiny},
                                              {tiny}}) {
      const Scale scale = scale_around(values, {.logarithmic = logarithmic});
      EXPECT_LT(scale.low, scale.high);
      EXPECT_TRUE(std::isfinite(scale.low) && std::isfinite(scale.high));
      EXPECT_LE(scale.ticks(6).size(), 7u);
      for (const double value : values) {
        EXPECT_GE(scale.place_of(value), 0);
        EXPECT_LE(scale.place_of(value), 1);
      }
    }
  EXPECT_LE((Scale{0, 1, true}.ticks(6)).size(), 7u);
  EXPECT_LE((Scale{1, INFINITY, true}.ticks(6)).size(), 7u);
}

TEST(Ticks, UseUnitsAndFewDigits) {
  EXPECT_EQ(tick_text(0, 1), "0");
  EXPECT_EQ(tick_text(1500, 500), "1.5k");
  EXPECT_EQ(tick_text(2e6, 1e6), "2M");
  EXPECT_EQ(tick_text(0.25, 0.05), "0.25");
  EXPECT_EQ(tick_text(0.30000000000000004, 0.1), "0.3");
  EXPECT_EQ(tick_text(5e-5, 1e-5), "5e-05");
  EXPECT_EQ(tick_texts({0, 0.5, 1}), (std::vector<std::string>{"0", "0.5", "1"}));
}

}  // namespace
}  // namespace thimble
