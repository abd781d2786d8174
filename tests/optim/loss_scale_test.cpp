#include "ops/step_state.h"

#include <gtest/gtest.h>

#include <limits>

namespace thimble {
namespace {

LossScale after(LossScale scale, int steps, bool finite) {
  for (int i = 0; i < steps; ++i) scale = next_loss_scale(scale, finite);
  return scale;
}

// As PyTorch's GradScaler: init_scale 65536, growth_factor 2, backoff_factor 0.5,
// growth_interval 2000.
TEST(LossScale, DoublesAfterTwoThousandGoodSteps) {
  const LossScale almost = after({}, 1999, true);
  EXPECT_EQ(almost, (LossScale{65536, 1999}));
  EXPECT_EQ(next_loss_scale(almost, true), (LossScale{131072, 0}));
  EXPECT_EQ(after(almost, 2001, true), (LossScale{262144, 0}));
}

TEST(LossScale, HalvesImmediatelyAndRestartsTheCount) {
  const LossScale halved = next_loss_scale(after({}, 1999, true), false);
  EXPECT_EQ(halved, (LossScale{32768, 0}));
  EXPECT_EQ(after(halved, 3, false), (LossScale{4096, 0}));
  EXPECT_EQ(after(halved, 1999, true), (LossScale{32768, 1999}));
  EXPECT_EQ(after(halved, 2000, true), (LossScale{65536, 0}));
}

TEST(LossScale, StaysFiniteAndMayFallBelowTheMinimum) {
  const LossScale most = after({kMaxLossScale, 0}, 2000, true);
  EXPECT_EQ(most, (LossScale{kMaxLossScale, 0}));
  EXPECT_LT(after({}, 30, false).scale, kMinLossScale);
  EXPECT_GE(after({}, 29, false).scale, kMinLossScale);
}

TEST(LossScale, AcceptsOnlyReachableStates) {
  for (LossScale scale : {LossScale{}, after({}, 29, false), after({}, 1999, true)})
    EXPECT_TRUE(is_loss_scale(scale.scale, static_cast<float>(scale.good_steps)));
  const float infinity = std::numeric_limits<float>::infinity(),
              nan = std::numeric_limits<float>::quiet_NaN();
  for (const float scale : {0.0f, -1.0f, 3.0f, 65535.0f, 0x1p-14f, 0x1p101f, infinity, nan})
    EXPECT_FALSE(is_loss_scale(scale, 0)) << scale;
  for (const float steps : {-1.0f, 0.5f, 2000.0f, infinity, nan})
    EXPECT_FALSE(is_loss_scale(65536, steps)) << steps;
}

}  // namespace
}  // namespace thimble
