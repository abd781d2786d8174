// Statistics of tensors.
#include <cmath>
#include <limits>

#include "qa/model_facts.h"

namespace thimble {
namespace {

TEST(TensorStats, CoverTheFiniteValues) {
  const std::vector<float> values = {1, 2, 0, 5, std::numeric_limits<float>::infinity(), std::nanf(""), 0};
  const TensorStats stats = stats_of(values);
  EXPECT_EQ(stats.count, 7);
  EXPECT_EQ(stats.zeros, 2);
  EXPECT_EQ(stats.not_finite, 2);
  EXPECT_DOUBLE_EQ(stats.mean, 1.6);
  EXPECT_DOUBLE_EQ(stats.deviation, std::sqrt((0.36 + 0.16 + 2.56 + 11.56 + 2.56) / 5));
  EXPECT_EQ(stats.least, 0);
  EXPECT_EQ(stats.most, 5);
  double counted = 0;
  for (const double bin : stats.histogram) counted += bin;
  EXPECT_EQ(counted, 5);
}

TEST(TensorStats, HandleConstantAndEmptyTensors) {
  const std::vector<float> same(10, 3.0f), zeros(4, 0.0f);
  EXPECT_EQ(stats_of(same).deviation, 0);
  EXPECT_EQ(stats_of(same).histogram[kHistogramBins / 2], 10);
  EXPECT_FALSE(stats_of(same).all_zero());
  EXPECT_TRUE(stats_of(zeros).all_zero());
  EXPECT_FALSE(stats_of(std::span<const float>()).all_zero());
}

}  // namespace
}  // namespace thimble
