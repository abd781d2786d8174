#include "report/run_data.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>

#include "base/error.h"
#include "report/chart.h"
#include "report/run_files.h"
#include "support/message_of.h"

namespace thimble {
namespace {

TEST(RunData, AValidationWithoutALossIsNotTheBest) {
  const RunData run{.folder = "run", .validations = {{.step = 0, .loss = NAN}, {.step = 10, .loss = 2}}};
  EXPECT_EQ(run.best_validation()->step, 10);
}

TEST(RunData, IsReadFromTheRunFolder) {
  const TempFolder folder;
  const RunData run = read_run(write_run(folder, {}));
  EXPECT_EQ(run.name(), "run");
  EXPECT_EQ(run.status().name, "completed");
  ASSERT_EQ(run.steps.size(), 40u);
  EXPECT_EQ(run.steps.back().elapsed, 20);
  EXPECT_EQ(run.tokens_at(40), 40 * 64);
  EXPECT_EQ(run.tokens_per_second(), 128);
  EXPECT_EQ(run.validations.size(), 4u);
  EXPECT_EQ(run.best_validation()->step, 40);
  EXPECT_EQ(run.samples.front().texts.front().text, "Once upon a time");
  EXPECT_EQ(run.start->parameters, 12345);
}

TEST(RunData, AnUnknownStatusIsShownUnchanged) {
  const TempFolder folder;
  const auto path = write_run(folder, {});
  EXPECT_EQ(read_run(path).status().status, RunStatus::completed);
  folder.write("run/run.json", R"({"status":"paused","steps":40,"calls":[]})");
  const RunData run = read_run(path);
  EXPECT_EQ(run.status().name, "paused");
  EXPECT_FALSE(run.status().status);
}

TEST(RunData, AFolderWithoutARunIsAnError) {
  const TempFolder folder;
  EXPECT_NE(message_of([&] { read_run(folder.path()); }).find("is not a run"), std::string::npos);
  folder.write("bad/metrics.jsonl", "no json\n");
  EXPECT_NE(message_of([&] { read_run(folder / "bad"); }).find("metrics.jsonl:1:"), std::string::npos);
}

TEST(RunFollower, ReadsNewLinesAndWaitsForCompleteOnes) {
  const TempFolder folder;
  const auto path = write_run(folder, {.steps = 3, .ended = false});
  RunFollower follower(path);
  EXPECT_EQ(follower.refresh().steps.size(), 3u);
  EXPECT_EQ(follower.data().status().name, "unfinished");
  const std::string line = step_line(4, 1);
  std::ofstream(path / "metrics.jsonl", std::ios::app) << line.substr(0, 20);
  EXPECT_EQ(follower.refresh().steps.size(), 3u);
  std::ofstream(path / "metrics.jsonl", std::ios::app) << line.substr(20);
  EXPECT_EQ(follower.refresh().steps.size(), 4u);
}

TEST(RunFollower, ReadsTheFileAgainAfterAResumedRunRewroteIt) {
  const TempFolder folder;
  const auto path = write_run(folder, {.steps = 9});
  RunFollower follower(path);
  EXPECT_EQ(follower.refresh().steps.size(), 9u);
  std::string shorter = start_line();  // truncated
  for (int step = 1; step <= 4; ++step) shorter += step_line(step, 1);
  folder.write("run/metrics.jsonl", shorter);
  EXPECT_EQ(follower.refresh().steps.size(), 4u);
  EXPECT_EQ(follower.data().steps.back().mean.loss, 1);
  // The file was rewritten and is now longer than before, so the old position is in the middle of a
  // line.
  std::string longer = start_line();
  for (int step = 1; step <= 30; ++step) longer += step_line(step, 123456.5);
  folder.write("run/metrics.jsonl", longer);
  follower.refresh();
  ASSERT_EQ(follower.data().steps.size(), 30u);
  for (std::size_t i = 0; i < 30; ++i)
    EXPECT_EQ(follower.data().steps[i].step, static_cast<std::int64_t>(i + 1)) << "each step once";
}

class ManySteps : public testing::Test {
 protected:
  static constexpr int kSteps = 4000, kSpike = 777, kBest = 1230;

  ManySteps() : path_(write_run(folder_, {})) {
    std::string metrics = start_line();
    for (int step = 1; step <= kSteps; ++step) {
      metrics += step_line(step, step == kSpike ? 99 : 2 + step % 7 / 10.0);
      if (step % 10 != 0) continue;
      metrics += validation_line(step, step == kBest ? 1 : 2 + step % 70 / 100.0);
      for (const char* text : {"one", "two"})
        metrics += Json::object().set("event", "sample").set("step", step).set("text", text).dump() + "\n";
    }
    folder_.write("run/metrics.jsonl", metrics);
  }

  TempFolder folder_;
  std::filesystem::path path_;
};

TEST_F(ManySteps, UseBoundedMemory) {
  RunFollower follower(path_, 100);
  const RunData& run = follower.refresh();
  EXPECT_LE(run.steps.size(), 100u);
  EXPECT_LE(run.validations.size(), 101u);
  EXPECT_LE(run.samples.size(), 66u);
  for (const SampledStep& sample : run.samples)
    EXPECT_EQ(sample.texts.size(), 2u) << "the texts of a step are kept together";
}

TEST_F(ManySteps, AreMergedEvenlyAndKeepSpikeBestAndLast) {
  const RunData complete = read_run(path_);
  ASSERT_EQ(complete.steps.size(), static_cast<std::size_t>(kSteps));
  RunFollower follower(path_, 100);
  const RunData& run = follower.refresh();
  EXPECT_EQ(run.steps.front().steps, 64);
  EXPECT_EQ(run.steps.front().steps, run.steps[run.steps.size() - 2].steps)
      << "old and new points have the same span";
  double high = 0;
  for (const StepPoint& point : run.steps) high = std::max(high, point.high.loss);
  EXPECT_EQ(high, 99);
  EXPECT_EQ(run.best_validation()->step, kBest);
  EXPECT_EQ(run.validations.back().step, kSteps);
  EXPECT_EQ(run.validations.back().loss, complete.validations.back().loss);
  EXPECT_EQ(run.steps.back().step, kSteps);
  EXPECT_EQ(run.final_train_loss(), complete.final_train_loss());
  EXPECT_EQ(run.tokens_per_second(), complete.tokens_per_second());
  EXPECT_EQ(run.samples.front().step, 10);
  EXPECT_EQ(run.samples.back().step, kSteps);
  EXPECT_LT(run.samples[run.samples.size() / 2].step, 0.6 * kSteps);
}

TEST_F(ManySteps, KeepMeansAndExtremes) {
  const RunData complete = read_run(path_);
  RunFollower follower(path_, 100);
  const RunData& run = follower.refresh();
  std::size_t next = 0;
  for (const StepPoint& point : run.steps) {
    double sum = 0, low = 1e9;
    for (std::int64_t i = 0; i < point.steps; ++i) {
      const StepPoint& step = complete.steps[next++];
      sum += step.mean.loss;
      low = std::min(low, step.mean.loss);
    }
    EXPECT_NEAR(point.mean.loss, sum / static_cast<double>(point.steps), 1e-9);
    EXPECT_EQ(point.low.loss, low);
    EXPECT_EQ(point.step, complete.steps[next - 1].step);
    EXPECT_EQ(point.elapsed, complete.steps[next - 1].elapsed);
  }
  EXPECT_EQ(next, complete.steps.size());
  const Curve means = curve_of(run, Metric::loss, XAxis::steps);
  const Curve all = smoothed(curve_of(complete, Metric::loss, XAxis::steps), 0.9);
  EXPECT_NEAR(smoothed(means, 0.9).back().y, all.back().y, 0.1) << "smoothing counts steps, not points";
  EXPECT_NEAR(suitable_smoothing(means), suitable_smoothing(all), 1e-12);
  const Curve far = extremes_of(run, Metric::loss, XAxis::steps);
  EXPECT_EQ(std::ranges::max(far, {}, &CurvePoint::y).y, 99);
  EXPECT_EQ(extremes_of(complete, Metric::loss, XAxis::steps),
            curve_of(complete, Metric::loss, XAxis::steps));
}

TEST(RunFollower, AStepWithoutValuesIsIgnoredWhenMerging) {
  const double none = std::numeric_limits<double>::quiet_NaN();
  const StepFigures good{.loss = 2, .grad_norm = 1}, skipped{.loss = none, .grad_norm = none};
  const StepPoint point = merged({.step = 1, .mean = good, .low = good, .high = good},
                                 {.step = 2, .mean = skipped, .low = skipped, .high = skipped});
  EXPECT_EQ(point.mean.loss, 2);
  EXPECT_EQ(point.low.grad_norm, 1);
  EXPECT_EQ(point.high.loss, 2);
  EXPECT_EQ(point.steps, 2);
}

TEST(Curve, SupportsStepsTokensAndSeconds) {
  const TempFolder folder;
  const RunData run = read_run(write_run(folder, {}));
  EXPECT_EQ(curve_of(run, Metric::loss, XAxis::steps).back(), (CurvePoint{40, 2.1}));
  EXPECT_EQ(curve_of(run, Metric::loss, XAxis::tokens).back().x, 40 * 64);
  EXPECT_EQ(curve_of(run, Metric::val_loss, XAxis::seconds).front(), (CurvePoint{5, 2.4}));
  EXPECT_EQ(curve_of(run, Metric::tokens_per_second, XAxis::steps).front().y, 128);
  EXPECT_DOUBLE_EQ(curve_of(run, Metric::lr, XAxis::steps)[49 - 10].y,
                   run.config->optimizer.rate(ParamGroup::matrix) * 0.6);
}

TEST(Curve, SmoothingKeepsConstantsAndWeighsBothSides) {
  const Curve flat(50, {0, 3});
  for (const CurvePoint& point : smoothed(flat, 0.95)) EXPECT_NEAR(point.y, 3, 1e-12);
  Curve jump(200);
  for (std::size_t i = 100; i < jump.size(); ++i) jump[i].y = 1;
  EXPECT_NEAR(smoothed(jump, 0.5)[100].y, (1 + 1) / 3.0, 1e-5) << "own, right and left weights are 1 each";
  EXPECT_EQ(smoothed(jump, 0), jump);
  EXPECT_EQ(smoothed(jump, 0.9).front().y, 0);
  EXPECT_EQ(suitable_smoothing(Curve(40)), 0);
  EXPECT_NEAR(suitable_smoothing(Curve(300)), 0.8, 1e-12);
  EXPECT_NEAR(suitable_smoothing(Curve(3, {0, 0, 1'000'000})), 0.96, 1e-12);
}

TEST(Curve, SmoothingDoesNotDelayAFallingCurve) {
  Curve line, loss;
  for (int i = 0; i < 300; ++i) {
    line.push_back({double(i), 1000.0 - i});
    loss.push_back({double(i), 0.3 + 5 * std::exp(-i / 40.0)});
  }
  const Curve straight = smoothed(line, 0.9), falling = smoothed(loss, 0.9);
  for (std::size_t i = 0; i < 150; ++i) {
    EXPECT_NEAR(straight[i].y, line[i].y, 0.05) << i << ": an exponential mean is 9 above";
    EXPECT_NEAR(falling[i].y, loss[i].y, 0.05 * loss[i].y) << i << ": convex, so slightly above";
  }
  EXPECT_NEAR(falling.back().y, loss.back().y, 0.05 * loss.back().y);
}

TEST(Curve, ThinningKeepsSpikesAndEnds) {
  Curve curve;
  for (int i = 0; i < 10'000; ++i) curve.push_back({double(i), std::sin(i / 300.0)});
  curve[4321].y = 50;
  curve[777].y = -50;
  const Curve thin = thinned(curve, 100);
  EXPECT_LE(thin.size(), 200u);
  EXPECT_EQ(thin.front(), curve.front());
  EXPECT_EQ(thin.back(), curve.back());
  EXPECT_EQ(std::ranges::count(thin, curve[4321]), 1);
  EXPECT_EQ(std::ranges::count(thin, curve[777]), 1);
  EXPECT_TRUE(std::ranges::is_sorted(thin, {}, &CurvePoint::x));
}

}  // namespace
}  // namespace thimble
