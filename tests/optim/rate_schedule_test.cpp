#include "optim/rate_schedule.h"

#include <cmath>

namespace thimble {
namespace {

TrainConfig config(ScheduleKind kind) {
  TrainConfig train;
  train.schedule = kind;
  train.steps = 100;
  train.warmup_steps = 10;
  return train;
}

TEST(Schedule, WarmsUpLinearlyToOne) {
  for (ScheduleKind kind : {ScheduleKind::linear, ScheduleKind::cosine, ScheduleKind::wsd}) {
    EXPECT_DOUBLE_EQ(rate_multiplier(config(kind), 0), 0.1);
    EXPECT_DOUBLE_EQ(rate_multiplier(config(kind), 9), 1.0);
  }
}

TEST(Schedule, LinearDecaysToTheMinimum) {
  TrainConfig train = config(ScheduleKind::linear);
  EXPECT_DOUBLE_EQ(rate_multiplier(train, 10), 1.0);
  EXPECT_DOUBLE_EQ(rate_multiplier(train, 55), 0.5);
  EXPECT_DOUBLE_EQ(rate_multiplier(train, 100), 0.0);
  train.min_lr = 0.2;
  EXPECT_DOUBLE_EQ(rate_multiplier(train, 55), 0.6);
  EXPECT_DOUBLE_EQ(rate_multiplier(train, 100), 0.2);
}

TEST(Schedule, CosineIsHalfAtTheMiddle) {
  EXPECT_NEAR(rate_multiplier(config(ScheduleKind::cosine), 55), 0.5, 1e-12);
  EXPECT_NEAR(rate_multiplier(config(ScheduleKind::cosine), 100), 0.0, 1e-12);
}

TEST(Schedule, WarmdownIsANumberOfStepsOrAFraction) {
  TrainConfig train = config(ScheduleKind::wsd);
  for (double warmdown : {40.0, 0.4}) {
    train.warmdown = warmdown;
    EXPECT_DOUBLE_EQ(rate_multiplier(train, 59), 1.0);
    EXPECT_DOUBLE_EQ(rate_multiplier(train, 80), 0.5);
    EXPECT_DOUBLE_EQ(rate_multiplier(train, 99), 1.0 / 40);
  }
}

// As in parameter-golf's train_gpt.py: at 0.5 s per step, 1200 steps of warm-down are 600 s, so a
// 600 s run decays from the start.
TEST(Schedule, GolfConvertsWarmdownStepsToTimeByTheAverageStep) {
  TrainConfig train;
  train.schedule = ScheduleKind::golf;
  train.steps = 20000;
  train.warmdown = 1200;
  train.max_seconds = 600;
  EXPECT_DOUBLE_EQ(rate_multiplier(train, 100, 50), 550.0 / 600);
  EXPECT_DOUBLE_EQ(rate_multiplier(train, 1000, 43.54), 1.0);
  EXPECT_NEAR(rate_multiplier(train, 13000, 13000 * 0.04354), (600 - 566.02) / (1200 * 0.04354), 1e-9);
  EXPECT_DOUBLE_EQ(rate_multiplier(train, 13800, 601), 0.0);
  train.max_seconds = 0;
  EXPECT_DOUBLE_EQ(rate_multiplier(train, 18800), 1.0);
  EXPECT_DOUBLE_EQ(rate_multiplier(train, 19400), 0.5);
}

TEST(Schedule, AverageStepExcludesUntimedSteps) {
  TrainConfig train;
  train.steps = 0;
  train.warmdown = 100;
  train.max_seconds = 600;
  for (ScheduleKind kind : {ScheduleKind::wsd, ScheduleKind::golf}) {
    train.schedule = kind;
    EXPECT_DOUBLE_EQ(rate_multiplier(train, 5500, 500, 5000), 1.0);
    EXPECT_DOUBLE_EQ(rate_multiplier(train, 5550, 550, 5000), 0.5);
  }
}

TEST(Schedule, EveryScheduleEndsAtTheTimeLimitIfThatComesFirst) {
  for (ScheduleKind kind : {ScheduleKind::linear, ScheduleKind::cosine, ScheduleKind::wsd}) {
    TrainConfig train = config(kind);
    train.warmdown = 0.5;
    train.max_seconds = 60;
    EXPECT_NEAR(rate_multiplier(train, 30, 60), 0.0, 1e-12) << "out of time at step 30";
    EXPECT_GT(rate_multiplier(train, 30, 20), 0.5);
    EXPECT_NEAR(rate_multiplier(train, 100, 20), 0.0, 1e-12) << "out of steps";
    train.steps = 0;  // only the time determines the end
    EXPECT_DOUBLE_EQ(rate_multiplier(train, 4, 1), 0.5) << "warm-up counts steps";
    EXPECT_NEAR(rate_multiplier(train, 5000, 60), 0.0, 1e-12);
    EXPECT_NEAR(rate_multiplier(train, 5000, 45),
                kind == ScheduleKind::linear   ? 0.25
                : kind == ScheduleKind::cosine ? 0.146447
                                               : 0.5,
                1e-6);
  }
}

TEST(Schedule, StartIsAStepOrAFractionOfStepsOrTime) {
  TrainConfig train = config(ScheduleKind::linear);
  EXPECT_TRUE(has_begun(0, train, 0, 0));
  EXPECT_FALSE(has_begun(40, train, 39, 0));
  EXPECT_TRUE(has_begun(40, train, 40, 0));
  EXPECT_FALSE(has_begun(0.4, train, 39, 0));
  EXPECT_TRUE(has_begun(0.4, train, 40, 0));
  train.max_seconds = 10;
  EXPECT_TRUE(has_begun(0.4, train, 3, 4));
  EXPECT_FALSE(has_begun(0.4, train, 3, 3.9));
}

TEST(Schedule, MuonsMomentumWarmsUp) {
  OptimizerConfig optimizer;
  EXPECT_DOUBLE_EQ(muon_momentum_at(optimizer, 0), 0.85);
  EXPECT_DOUBLE_EQ(muon_momentum_at(optimizer, 250), 0.90);
  EXPECT_DOUBLE_EQ(muon_momentum_at(optimizer, 500), 0.95);
  EXPECT_DOUBLE_EQ(muon_momentum_at(optimizer, 5000), 0.95);
}

}  // namespace
}  // namespace thimble
