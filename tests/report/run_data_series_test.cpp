#include "report/run_data.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace thimble::run_data_series_test {
namespace {

struct Number {
  std::int64_t step = 0, count = 1, sum = 0;
};
Number merged(const Number& a, const Number& b) {
  return {b.step, a.count + b.count, a.sum + b.sum};
}

struct Text {
  std::int64_t step = 0;
};
Text merged(const Text& a, const Text& /*b*/) {
  return a;
}

TEST(BoundedSeries, PointsCoverAllAddedValuesEvenly) {
  for (const std::int64_t added : {1, 7, 8, 9, 16, 17, 1000, 100'003}) {
    BoundedSeries<Number> series(8);
    for (std::int64_t i = 1; i <= added; ++i) series.add({i, 1, i});
    const std::vector<Number> points = series.points();
    ASSERT_LE(points.size(), 8u) << added;
    EXPECT_GE(points.size(), std::min<std::size_t>(5, static_cast<std::size_t>(added))) << added;
    std::int64_t count = 0, sum = 0;
    for (const Number& point : points) {
      count += point.count;
      sum += point.sum;
      if (&point != &points.back()) {
        EXPECT_EQ(point.count, points.front().count) << added << ": all points have the same span";
      }
    }
    EXPECT_EQ(count, added);
    EXPECT_EQ(sum, added * (added + 1) / 2);
    EXPECT_EQ(points.back().step, added);
  }
}

TEST(BoundedSeries, KeepsTheLatestIfMergingDropsIt) {
  BoundedSeries<Text> series(4);
  EXPECT_TRUE(series.points().empty());
  for (std::int64_t i = 1; i <= 1001; ++i) {
    series.add({i});
    const std::vector<Text> points = series.points();
    ASSERT_LE(points.size(), 5u);
    ASSERT_EQ(points.front().step, 1);
    ASSERT_EQ(points.back().step, i);
    for (std::size_t p = 1; p < points.size(); ++p) ASSERT_LT(points[p - 1].step, points[p].step);
  }
}

}  // namespace
}  // namespace thimble::run_data_series_test
