#include "report/scale.h"

#include <cmath>

namespace thimble {
namespace {

TEST(Scale, TicksAreRoundAndInside) {
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

TEST(Scale, IsLogarithmicOnlyWhereThatHelps) {
  EXPECT_TRUE(scale_around({1, 8}, {.logarithmic = true}).logarithmic);
  EXPECT_FALSE(scale_around({1, 2}, {.logarithmic = true}).logarithmic);
  EXPECT_FALSE(scale_around({0, 8}, {.logarithmic = true}).logarithmic);
  EXPECT_NEAR((Scale{1, 100, true}.place_of(10)), 0.5, 1e-12);
}

TEST(Scale, LivesWithNothingAndWithOneValue) {
  EXPECT_EQ(scale_around({}, {}).high, 1);
  EXPECT_EQ(scale_around({NAN, INFINITY}, {}).high, 1);
  const Scale one = scale_around({5, 5}, {});
  EXPECT_LT(one.low, 5);
  EXPECT_GT(one.high, 5);
  EXPECT_EQ(scale_around({3, 4}, {.from_zero = true}).low, 0);
}

TEST(Ticks, AreShort) {
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
