#include "optim/averaging.h"

#include <vector>

namespace thimble {
namespace {

using Weights = std::vector<float>;

Weights numbers(std::span<const float> values) {
  return {values.begin(), values.end()};
}

TEST(Averaging, SwaIsTheMeanOfWeightsSampledWhileTheRateFalls) {
  TrainConfig config;
  config.swa_start = 0.5;
  config.swa_every = 10;
  config.warmup_steps = 20;
  Averaging swa(config, 2);
  swa.begin(Weights{9, 9});
  swa.add(10, 0.25, Weights{100, 100});  // the rate is low because of the warm-up
  swa.add(30, 0.5, Weights{100, 100});   // not below yet
  swa.add(41, 0.4, Weights{100, 100});   // between two multiples of swa_every
  EXPECT_FALSE(swa.available());
  EXPECT_EQ(swa.kind(), "raw");
  swa.add(40, 0.4, Weights{1, 8});
  swa.add(50, 0.2, Weights{2, 6});
  swa.add(60, 0.1, Weights{6, 1});
  EXPECT_EQ(swa.kind(), "swa");
  EXPECT_EQ(swa.count(), 3);
  EXPECT_FLOAT_EQ(swa.average()[0], 3);
  EXPECT_FLOAT_EQ(swa.average()[1], 5);
}

TEST(Averaging, EmaStartsFromTheInitialWeights) {
  TrainConfig config;
  config.ema_decay = 0.75;
  Averaging ema(config, 1);
  ema.begin(Weights{4});
  EXPECT_EQ(ema.kind(), "ema");
  ema.add(1, 1, Weights{8});
  EXPECT_FLOAT_EQ(ema.average()[0], 5);
  ema.add(2, 1, Weights{1});
  EXPECT_FLOAT_EQ(ema.average()[0], 4);
}

TEST(Averaging, AverageAndCountAreTheCompleteState) {
  TrainConfig config;
  config.swa_start = 1;
  config.swa_every = 1;
  Averaging one(config, 3), restored(config, 3);
  for (int step = 1; step <= 9; ++step) {
    const Weights weights = {0.1f * static_cast<float>(step), 1.0f / static_cast<float>(step), -3.3f};
    one.add(step, 0.5, weights);
    if (step == 5) {
      std::ranges::copy(one.average(), restored.average().begin());
      restored.restore_count(one.count());
    } else if (step > 5) {
      restored.add(step, 0.5, weights);
    }
  }
  EXPECT_EQ(numbers(one.average()), numbers(restored.average()));
}

TEST(Averaging, SwapsTheWeightsAndRestoresThemBitForBit) {
  TrainConfig config;
  config.ema_decay = 0.9;
  Averaging ema(config, 2);
  ema.begin(Weights{1, 2});
  Weights weights = {0.1f, 3e-39f};
  const Weights raw = weights;
  {
    const AverageInPlace average(ema, weights);
    EXPECT_EQ(weights, (Weights{1, 2}));
  }
  EXPECT_EQ(weights, raw);
  EXPECT_EQ(numbers(ema.average()), (Weights{1, 2}));
}

TEST(Averaging, WithoutAnAverageTheWeightsAreUnchanged) {
  Averaging off({}, 2);
  EXPECT_FALSE(off.on());
  EXPECT_TRUE(off.average().empty());
  Weights weights = {1, 2};
  off.begin(weights);
  const AverageInPlace average(off, weights);
  EXPECT_EQ(weights, (Weights{1, 2}));
}

}  // namespace
}  // namespace thimble
