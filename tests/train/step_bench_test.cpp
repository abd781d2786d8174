#include "train/step_bench.h"

#include <vector>

namespace thimble {
namespace {

// Measures the given ceilings one after the other, and the last one from then on.
double measured_again(double speed, std::vector<double> ceilings, std::size_t* calls = nullptr) {
  std::size_t next = 1;
  const double ceiling = ceiling_above(
      speed, ceilings.front(), [&] { return next < ceilings.size() ? ceilings[next++] : ceilings.back(); });
  if (calls) *calls = next - 1;
  return ceiling;
}

TEST(Ceiling, IsMeasuredAgainIfTheSpeedExceedsIt) {
  std::size_t calls = 0;
  EXPECT_EQ(measured_again(10, {12, 99}, &calls), 12);
  EXPECT_EQ(calls, 0u);
  EXPECT_EQ(measured_again(10, {5, 15, 99}, &calls), 15);
  EXPECT_EQ(calls, 1u);
  EXPECT_EQ(measured_again(10, {5, 7, 6, 3, 99}, &calls), 7) << "three more attempts; the highest";
  EXPECT_EQ(calls, 3u);
}

TEST(Ceiling, TheFractionIsNeverAboveOne) {
  EXPECT_EQ(fraction_of(3, 12), 0.25);
  EXPECT_EQ(fraction_of(12, 12), 1);
  EXPECT_EQ(fraction_of(13, 12), std::nullopt);
}

}  // namespace
}  // namespace thimble
