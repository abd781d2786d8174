#include "train/diagnosis.h"

#include <algorithm>
#include <cmath>
#include <functional>

namespace thimble {
namespace {

struct FakeRun {
  RunHistory history;
  RunFacts facts{history};

  // A healthy run: the loss falls to 2 and stays there; a tenth of an epoch is read.
  explicit FakeRun(const std::function<StepRecord(int)>& record = {}, int steps = 1000) {
    for (int i = 0; i < steps; ++i)
      history.add(record
                      ? record(i)
                      : StepRecord{.loss = 2 + 3 * std::exp(-i / 40.0), .grad_norm = 0.5, .seconds = 0.01});
    facts.parameters = 1000;
    facts.unique_tokens = 1000000;
    facts.tokens_seen = 100000;
    facts.train_loss = history.smoothed_loss();
    facts.wall_seconds = 11;
    facts.step_seconds = 10;
  }

  Diagnosis diagnosis() const { return diagnose(facts).value(); }
};

bool has_evidence(const Diagnosis& diagnosis, std::string_view words) {
  for (const std::string& line : diagnosis.evidence)
    if (line.find(words) != std::string::npos) return true;
  return false;
}

TEST(Diagnosis, ReportsALevelledOffLossWithoutOtherSigns) {
  const Diagnosis diagnosis = FakeRun().diagnosis();
  EXPECT_EQ(diagnosis.limit, Limit::optimization);
  EXPECT_TRUE(has_evidence(diagnosis, "leveled off at 2.0000")) << diagnosis.text();
}

TEST(Diagnosis, NeedsAtLeastTwentySteps) {
  EXPECT_FALSE(diagnose(FakeRun({}, 19).facts));
  EXPECT_TRUE(diagnose(FakeRun({}, 20).facts));
}

TEST(Diagnosis, WaitingForDataIsInfrastructure) {
  FakeRun run([](int) { return StepRecord{.loss = 2, .grad_norm = 1, .seconds = 1, .input_seconds = 0.4}; });
  run.facts.tokens_seen = 5000000;  // and five epochs, which is a slight sign only
  const Diagnosis diagnosis = run.diagnosis();
  EXPECT_EQ(diagnosis.limit, Limit::infrastructure);
  EXPECT_TRUE(has_evidence(diagnosis, "steps spent 40 % of their time waiting for data")) << diagnosis.text();
}

TEST(Diagnosis, TimeOutsideStepsAndADtypeFallbackAreInfrastructure) {
  FakeRun run;
  run.facts.wall_seconds = 40;
  run.facts.fallback = "fell back to f32: no bf16 instructions";
  const Diagnosis diagnosis = run.diagnosis();
  EXPECT_EQ(diagnosis.limit, Limit::infrastructure);
  EXPECT_TRUE(has_evidence(diagnosis, "validation and checkpoints took 75 % of 40.0 s")) << diagnosis.text();
  EXPECT_TRUE(has_evidence(diagnosis, "fell back to f32"));
}

TEST(Diagnosis, ManyEpochsAndAGapToValidationAreData) {
  FakeRun run;
  run.facts.tokens_seen = 20000000;
  run.history.add_validation(500, 2.6);
  run.history.add_validation(1000, 2.5);
  const Diagnosis diagnosis = run.diagnosis();
  EXPECT_EQ(diagnosis.limit, Limit::data);
  EXPECT_TRUE(has_evidence(diagnosis, "20.0 epochs over 1.00 M tokens")) << diagnosis.text();
  EXPECT_TRUE(has_evidence(diagnosis, "training loss 2.0000 is 0.5000 nats below validation loss 2.5000"));
}

TEST(Diagnosis, ValidationFarBelowTrainingIsData) {
  FakeRun run;
  run.history.add_validation(1000, 1.5);
  const Diagnosis diagnosis = run.diagnosis();
  EXPECT_EQ(diagnosis.limit, Limit::data);
  EXPECT_TRUE(has_evidence(diagnosis, "check that the validation text is not part of the training text"))
      << diagnosis.text();
}

TEST(Diagnosis, AcceptsValidationBelowALaggingOrDroppedOutTrainingLoss) {
  FakeRun quick([](int i) { return StepRecord{.loss = 6 - 0.1 * i, .grad_norm = 1, .seconds = 1}; }, 30);
  quick.history.add_validation(30, 3.0);
  EXPECT_FALSE(has_evidence(quick.diagnosis(), "part of the training text")) << quick.diagnosis().text();
  FakeRun dropped;
  dropped.history.add_validation(1000, 1.5);
  dropped.facts.dropout = true;
  EXPECT_FALSE(has_evidence(dropped.diagnosis(), "part of the training text")) << dropped.diagnosis().text();
}

TEST(Diagnosis, ABestValidationLongPastIsData) {
  FakeRun run;
  run.history.add_validation(0, 1.9);
  for (int i = 1; i <= 10; ++i) run.history.add_validation(100 * i, i < 4 ? 2.4 - 0.1 * i : 2.1 + 0.01 * i);
  const Diagnosis diagnosis = run.diagnosis();
  EXPECT_EQ(diagnosis.limit, Limit::data);
  EXPECT_TRUE(has_evidence(diagnosis, "best at step 300")) << diagnosis.text();
}

TEST(Diagnosis, FewTokensPerParameterCountOnlyAfterAFullEpoch) {
  FakeRun run;
  run.facts.parameters = 10000000;
  EXPECT_EQ(run.diagnosis().limit, Limit::optimization);
  run.facts.tokens_seen = 1500000;
  const Diagnosis diagnosis = run.diagnosis();
  EXPECT_EQ(diagnosis.limit, Limit::data);
  EXPECT_TRUE(has_evidence(diagnosis, "0.1 distinct tokens per parameter")) << diagnosis.text();
}

// At the start data_warning() says that the model is too large for the text or for the steps.
TEST(Diagnosis, AdvisesALargerModelOnlyIfTheStartDidNotWarn) {
  const auto advice = [](std::int64_t parameters, std::int64_t tokens_seen, bool began_trained) {
    FakeRun run;  // 1,000,000 distinct tokens
    run.facts.parameters = parameters;
    run.facts.tokens_seen = tokens_seen;
    run.facts.began_trained = began_trained;
    return run.diagnosis().advice;
  };
  const auto says = [](const std::string& advice, std::string_view words) {
    return advice.find(words) != std::string::npos;
  };
  EXPECT_TRUE(says(advice(10'000, 900'000, false), "a larger model"));
  for (const auto& [parameters, seen] : {std::pair{200'000, 900'000}, {10'000, 90'000}}) {
    EXPECT_FALSE(says(advice(parameters, seen, false), "a larger model")) << parameters;
    EXPECT_TRUE(says(advice(parameters, seen, false), "a smaller model")) << parameters;
    EXPECT_FALSE(says(advice(parameters, seen, true), "model")) << "fine-tuned: the size is given";
  }
}

TEST(Diagnosis, AFineTunedModelNeedsNoTokensForEveryParameter) {
  FakeRun run;
  run.facts.parameters = 10000000;
  run.facts.tokens_seen = 1500000;
  run.facts.began_trained = true;
  EXPECT_EQ(run.diagnosis().limit, Limit::optimization);
}

TEST(Diagnosis, AFallingLossIsOptimization) {
  const Diagnosis diagnosis = FakeRun([](int i) {
                                return StepRecord{.loss = 5 - 0.004 * i, .grad_norm = 1, .seconds = 1};
                              }).diagnosis();
  EXPECT_EQ(diagnosis.limit, Limit::optimization);
  EXPECT_TRUE(has_evidence(diagnosis, "still falling: by 0.8")) << diagnosis.text();
}

TEST(Diagnosis, SpikesClippingAndAGrowingGradientAreOptimization) {
  const Diagnosis diagnosis = FakeRun([](int i) {
                                return StepRecord{.loss = i % 100 == 99 ? 6.0 : 2.0 + 0.01 * (i % 2),
                                                  .grad_norm = i < 500 ? 1.0 : 9.0,
                                                  .seconds = 1,
                                                  .clipped = i % 4 != 0};
                              }).diagnosis();
  EXPECT_EQ(diagnosis.limit, Limit::optimization);
  EXPECT_TRUE(has_evidence(diagnosis, "spiked 10 times in 1000 steps")) << diagnosis.text();
  EXPECT_TRUE(has_evidence(diagnosis, "norm grew from 1 to 9"));
  EXPECT_TRUE(has_evidence(diagnosis, "clipped in 75 %"));
}

TEST(Diagnosis, EndingWorseThanTheStartIsOptimization) {
  FakeRun run([](int) { return StepRecord{.loss = 800, .grad_norm = 1, .seconds = 1}; });
  run.history.add_validation(0, 5.5);
  run.history.add_validation(1000, 820);
  const Diagnosis diagnosis = run.diagnosis();
  EXPECT_EQ(diagnosis.limit, Limit::optimization);
  EXPECT_TRUE(has_evidence(diagnosis, "validation loss 820.0000 is worse than before the first step, 5.5000"))
      << diagnosis.text();
  EXPECT_NE(diagnosis.advice.find("a lower learning rate"), std::string::npos);
}

TEST(Diagnosis, DivergenceOverridesAllOtherSigns) {
  FakeRun run;
  run.facts.tokens_seen = 100000000;
  run.facts.divergence = "loss nan: not finite";
  EXPECT_EQ(run.diagnosis().limit, Limit::optimization);
  EXPECT_TRUE(has_evidence(run.diagnosis(), "not finite"));
  FakeRun first_step({}, 1);
  first_step.facts.divergence = "loss nan: not finite";
  EXPECT_TRUE(has_evidence(first_step.diagnosis(), "not finite"));
}

TEST(Series, KeepsTheShapeOfAnyNumberOfValues) {
  Series series;
  for (int i = 0; i < 100000; ++i) series.add(i);
  const auto points = series.points();
  EXPECT_LE(points.size(), 512u);
  EXPECT_GE(points.size(), 256u);
  EXPECT_TRUE(std::ranges::is_sorted(points));
  EXPECT_NEAR(points[points.size() / 2], 50000, 500);
}

TEST(LossTrend, ARiseThatLastsIsADivergenceAndASpikeIsNot) {
  LossTrend trend;
  for (int i = 0; i < 100; ++i) trend.add(5 - 0.03 * i);
  EXPECT_NEAR(trend.lowest, 2.2, 0.4);
  EXPECT_NEAR(trend.limit(), 1.5 * trend.lowest, 1e-12);
  for (int i = 0; i < 19; ++i) trend.add(6);
  EXPECT_FALSE(trend.has_diverged(false));
  LossTrend spike = trend;
  spike.add(2.5);
  EXPECT_EQ(spike.high_steps, 0);
  trend.add(6);
  EXPECT_TRUE(trend.has_diverged(false));
}

TEST(LossTrend, AtTheEndOfARunFiveHighLossesAreADivergence) {
  LossTrend trend;
  for (const double loss : {5.5, 40.0, 90.0, 300.0, 700.0}) trend.add(loss);
  EXPECT_FALSE(trend.has_diverged(true));
  trend.add(1000);
  EXPECT_TRUE(trend.has_diverged(true));
  EXPECT_FALSE(trend.has_diverged(false));
}

TEST(LossTrend, ASmallLossMayRiseByOneNat) {
  LossTrend trend;
  trend.add(0.05);
  for (int i = 0; i < 50; ++i) trend.add(1.0);
  EXPECT_FALSE(trend.has_diverged(false)) << "an overfitted model that meets new text";
}

TEST(RunHistory, SmoothsOverTheLastFiftyStepsAndWeighsBytes) {
  RunHistory history;
  for (int i = 0; i < 60; ++i)
    history.add({.loss = i < 10 ? 100.0 : 2.0, .targets = 10, .bytes = 40, .grad_norm = 1, .seconds = 1});
  EXPECT_DOUBLE_EQ(history.smoothed_loss(), 2);
  EXPECT_NEAR(history.smoothed_bits_per_byte(), 2 / std::log(2) / 4, 1e-12);
}

}  // namespace
}  // namespace thimble
