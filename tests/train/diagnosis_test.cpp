#include "train/diagnosis.h"

#include <algorithm>
#include <cmath>
#include <functional>

namespace thimble {
namespace {

struct Made {
  RunHistory history;
  RunFacts facts{history};

  // A healthy run: the loss falls to 2 and stays, a tenth of an epoch, nothing stands out.
  explicit Made(const std::function<StepRecord(int)>& record = {}, int steps = 1000) {
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

bool says(const Diagnosis& diagnosis, std::string_view words) {
  for (const std::string& line : diagnosis.evidence)
    if (line.find(words) != std::string::npos) return true;
  return false;
}

TEST(Diagnosis, ARunWithoutSignsHasLevelledOff) {
  const Diagnosis diagnosis = Made().diagnosis();
  EXPECT_EQ(diagnosis.limit, Limit::optimisation);
  EXPECT_TRUE(says(diagnosis, "levelled off at 2.0000")) << diagnosis.text();
}

TEST(Diagnosis, AFewStepsTellNothing) {
  EXPECT_FALSE(diagnose(Made({}, 19).facts));
  EXPECT_TRUE(diagnose(Made({}, 20).facts));
}

TEST(Diagnosis, WaitingForDataIsInfrastructure) {
  Made run([](int) { return StepRecord{.loss = 2, .grad_norm = 1, .seconds = 1, .input_seconds = 0.4}; });
  run.facts.tokens_seen = 5000000;  // and five epochs, which is a slight sign only
  const Diagnosis diagnosis = run.diagnosis();
  EXPECT_EQ(diagnosis.limit, Limit::infrastructure);
  EXPECT_TRUE(says(diagnosis, "40 % of the steps' time went into waiting for data")) << diagnosis.text();
}

TEST(Diagnosis, TimeOutsideOfStepsAndAFallbackAreInfrastructure) {
  Made run;
  run.facts.wall_seconds = 40;
  run.facts.fallback = "computed in f32: this CPU does not multiply bf16";
  const Diagnosis diagnosis = run.diagnosis();
  EXPECT_EQ(diagnosis.limit, Limit::infrastructure);
  EXPECT_TRUE(says(diagnosis, "validation and checkpoints took 75 % of 40.0 s")) << diagnosis.text();
  EXPECT_TRUE(says(diagnosis, "does not multiply bf16"));
}

TEST(Diagnosis, ManyEpochsAndAGapToValidationAreData) {
  Made run;
  run.facts.tokens_seen = 20000000;
  run.history.add_validation(500, 2.6);
  run.history.add_validation(1000, 2.5);
  const Diagnosis diagnosis = run.diagnosis();
  EXPECT_EQ(diagnosis.limit, Limit::data);
  EXPECT_TRUE(says(diagnosis, "20.0 epochs over 1.00 M tokens")) << diagnosis.text();
  EXPECT_TRUE(says(diagnosis, "training, at 2.0000, is 0.5000 nats below validation, at 2.5000"));
}

TEST(Diagnosis, ValidationFarBelowTrainingIsData) {
  Made run;
  run.history.add_validation(1000, 1.5);
  const Diagnosis diagnosis = run.diagnosis();
  EXPECT_EQ(diagnosis.limit, Limit::data);
  EXPECT_TRUE(says(diagnosis, "is it part of the training text?")) << diagnosis.text();
}

TEST(Diagnosis, ATrainingLossThatLagsOrIsDroppedOutAccusesNobody) {
  Made quick([](int i) { return StepRecord{.loss = 6 - 0.1 * i, .grad_norm = 1, .seconds = 1}; }, 30);
  quick.history.add_validation(30, 3.0);
  EXPECT_FALSE(says(quick.diagnosis(), "part of the training text")) << quick.diagnosis().text();
  Made dropped;
  dropped.history.add_validation(1000, 1.5);
  dropped.facts.dropout = true;
  EXPECT_FALSE(says(dropped.diagnosis(), "part of the training text")) << dropped.diagnosis().text();
}

TEST(Diagnosis, ABestStepLongGoneIsData) {
  Made run;
  run.history.add_validation(0, 1.9);
  for (int i = 1; i <= 10; ++i) run.history.add_validation(100 * i, i < 4 ? 2.4 - 0.1 * i : 2.1 + 0.01 * i);
  const Diagnosis diagnosis = run.diagnosis();
  EXPECT_EQ(diagnosis.limit, Limit::data);
  EXPECT_TRUE(says(diagnosis, "best at step 300")) << diagnosis.text();
}

TEST(Diagnosis, FewTokensPerParameterCountOnlyOnceAllWereRead) {
  Made run;
  run.facts.parameters = 10000000;
  EXPECT_EQ(run.diagnosis().limit, Limit::optimisation);
  run.facts.tokens_seen = 1500000;
  const Diagnosis diagnosis = run.diagnosis();
  EXPECT_EQ(diagnosis.limit, Limit::data);
  EXPECT_TRUE(says(diagnosis, "0.1 different tokens per parameter")) << diagnosis.text();
}

TEST(Diagnosis, ALossThatStillFallsIsOptimisation) {
  const Diagnosis diagnosis =
      Made([](int i) { return StepRecord{.loss = 5 - 0.004 * i, .grad_norm = 1, .seconds = 1}; }).diagnosis();
  EXPECT_EQ(diagnosis.limit, Limit::optimisation);
  EXPECT_TRUE(says(diagnosis, "still falling: by 0.8")) << diagnosis.text();
}

TEST(Diagnosis, SpikesClippingAndAGrowingGradientAreOptimisation) {
  const Diagnosis diagnosis = Made([](int i) {
                                return StepRecord{.loss = i % 100 == 99 ? 6.0 : 2.0 + 0.01 * (i % 2),
                                                  .grad_norm = i < 500 ? 1.0 : 9.0,
                                                  .seconds = 1,
                                                  .clipped = i % 4 != 0};
                              }).diagnosis();
  EXPECT_EQ(diagnosis.limit, Limit::optimisation);
  EXPECT_TRUE(says(diagnosis, "spiked 10 times in 1000 steps")) << diagnosis.text();
  EXPECT_TRUE(says(diagnosis, "norm grew from 1 to 9"));
  EXPECT_TRUE(says(diagnosis, "clipped in 75 %"));
}

TEST(Diagnosis, ARunThatEndsWorseThanItBeganIsOptimisation) {
  Made run([](int) { return StepRecord{.loss = 800, .grad_norm = 1, .seconds = 1}; });
  run.history.add_validation(0, 5.5);
  run.history.add_validation(1000, 820);
  const Diagnosis diagnosis = run.diagnosis();
  EXPECT_EQ(diagnosis.limit, Limit::optimisation);
  EXPECT_TRUE(says(diagnosis, "validation, at 820.0000, is worse than before the first step, at 5.5000"))
      << diagnosis.text();
  EXPECT_NE(diagnosis.advice.find("a lower learning rate"), std::string::npos);
}

TEST(Diagnosis, DivergenceComesFirstWhateverElseIsTrue) {
  Made run;
  run.facts.tokens_seen = 100000000;
  run.facts.diverged = true;
  EXPECT_EQ(run.diagnosis().limit, Limit::optimisation);
  EXPECT_TRUE(says(run.diagnosis(), "not finite"));
  Made at_once({}, 1);
  at_once.facts.diverged = true;
  EXPECT_TRUE(says(at_once.diagnosis(), "not finite"));
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

TEST(RunHistory, SmoothsOverTheLastFiftyStepsAndWeighsBytes) {
  RunHistory history;
  for (int i = 0; i < 60; ++i)
    history.add({.loss = i < 10 ? 100.0 : 2.0, .targets = 10, .bytes = 40, .grad_norm = 1, .seconds = 1});
  EXPECT_DOUBLE_EQ(history.smoothed_loss(), 2);
  EXPECT_NEAR(history.smoothed_bits_per_byte(), 2 / std::log(2) / 4, 1e-12);
}

}  // namespace
}  // namespace thimble
