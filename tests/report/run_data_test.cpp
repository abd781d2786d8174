#include "report/run_data.h"

#include <algorithm>
#include <fstream>

#include "base/error.h"
#include "report/curve.h"
#include "report/run_files.h"
#include "support/message_of.h"

namespace thimble {
namespace {

TEST(RunData, IsReadFromTheFolder) {
  const TempFolder folder;
  const RunData run = read_run(write_run(folder, {}));
  EXPECT_EQ(run.name(), "run");
  EXPECT_EQ(run.status(), "completed");
  ASSERT_EQ(run.steps.size(), 40u);
  EXPECT_EQ(run.steps.back().elapsed, 20);
  EXPECT_EQ(run.tokens_at(40), 40 * 64);
  EXPECT_EQ(run.tokens_per_second(), 128);
  EXPECT_EQ(run.validations.size(), 4u);
  EXPECT_EQ(run.best_validation()->step, 40);
  EXPECT_EQ(run.samples.front().text, "Once upon a time");
  EXPECT_EQ(run.start->parameters, 12345);
}

TEST(RunData, AFolderWithoutARunIsAnError) {
  const TempFolder folder;
  EXPECT_NE(message_of([&] { read_run(folder.path()); }).find("holds no run"), std::string::npos);
  folder.write("bad/metrics.jsonl", "no json\n");
  EXPECT_NE(message_of([&] { read_run(folder / "bad"); }).find("metrics.jsonl:1:"), std::string::npos);
}

TEST(RunFollower, TakesWhatIsNewAndWaitsForTheEndOfALine) {
  const TempFolder folder;
  const auto path = write_run(folder, {.steps = 3, .ended = false});
  RunFollower follower(path);
  EXPECT_EQ(follower.refresh().steps.size(), 3u);
  EXPECT_EQ(follower.data().status(), "unfinished");
  const std::string line = step_line(4, 1);
  std::ofstream(path / "metrics.jsonl", std::ios::app) << line.substr(0, 20);
  EXPECT_EQ(follower.refresh().steps.size(), 3u);
  std::ofstream(path / "metrics.jsonl", std::ios::app) << line.substr(20);
  EXPECT_EQ(follower.refresh().steps.size(), 4u);
}

TEST(RunFollower, StartsOverWhereAResumedRunRewroteItsPast) {
  const TempFolder folder;
  const auto path = write_run(folder, {.steps = 9});
  RunFollower follower(path);
  EXPECT_EQ(follower.refresh().steps.size(), 9u);
  std::string shorter = start_line();  // cut
  for (int step = 1; step <= 4; ++step) shorter += step_line(step, 1);
  folder.write("run/metrics.jsonl", shorter);
  EXPECT_EQ(follower.refresh().steps.size(), 4u);
  EXPECT_EQ(follower.data().steps.back().loss, 1);
  // Cut, and longer than before by the time anybody looks: what was read last ends in the middle of a line.
  std::string longer = start_line();
  for (int step = 1; step <= 30; ++step) longer += step_line(step, 123456.5);
  folder.write("run/metrics.jsonl", longer);
  follower.refresh();
  ASSERT_EQ(follower.data().steps.size(), 30u);
  for (std::size_t i = 0; i < 30; ++i)
    EXPECT_EQ(follower.data().steps[i].step, static_cast<std::int64_t>(i + 1)) << "each step once";
}

TEST(RunFollower, IsBoundedAndLosesNeitherASpikeNorTheBest) {
  constexpr int kSteps = 4000, kSpike = 777, kBest = 1230;
  const TempFolder folder;
  std::string metrics = start_line();
  for (int step = 1; step <= kSteps; ++step) {
    metrics += step_line(step, step == kSpike ? 99 : 2 + step % 7 / 10.0);
    if (step % 10 != 0) continue;
    metrics += validation_line(step, step == kBest ? 1 : 2);
    for (const char* text : {"one", "two"})
      metrics += Json::object().set("event", "sample").set("step", step).set("text", text).dump() + "\n";
  }
  const auto path = write_run(folder, {});
  folder.write("run/metrics.jsonl", metrics);
  const RunData whole = read_run(path);
  ASSERT_EQ(whole.steps.size(), static_cast<std::size_t>(kSteps));
  RunFollower follower(path, 300);
  const RunData& run = follower.refresh();
  EXPECT_LE(run.steps.size(), 300u);
  EXPECT_GE(run.steps.size(), 100u);
  EXPECT_LE(run.validations.size(), 300u);
  EXPECT_LE(run.samples.size(), 258u);
  EXPECT_EQ(run.steps.front().step, 1);
  for (std::size_t back = 1; back <= 50; ++back)
    EXPECT_EQ(run.steps[run.steps.size() - back].step, kSteps + 1 - static_cast<int>(back));
  EXPECT_TRUE(std::ranges::is_sorted(run.steps, {}, &StepPoint::step));
  EXPECT_EQ(std::ranges::count(run.steps, kSpike, &StepPoint::step), 1);
  EXPECT_EQ(run.best_validation()->step, kBest);
  EXPECT_EQ(run.final_train_loss(), whole.final_train_loss());
  EXPECT_EQ(run.tokens_per_second(), whole.tokens_per_second());
  for (std::size_t i = 0; i < run.samples.size(); i += 2)  // a step's texts stay together
    EXPECT_EQ(run.samples[i].step, run.samples[i + 1].step);
  EXPECT_EQ(run.samples.front().step, 10);
  EXPECT_EQ(run.samples.back().step, kSteps);
}

TEST(Curve, IsOverStepsTokensOrSeconds) {
  const TempFolder folder;
  const RunData run = read_run(write_run(folder, {}));
  EXPECT_EQ(curve_of(run, Metric::loss, XAxis::steps).back(), (CurvePoint{40, 2.1}));
  EXPECT_EQ(curve_of(run, Metric::loss, XAxis::tokens).back().x, 40 * 64);
  EXPECT_EQ(curve_of(run, Metric::val_loss, XAxis::seconds).front(), (CurvePoint{5, 2.4}));
  EXPECT_EQ(curve_of(run, Metric::tokens_per_second, XAxis::steps).front().y, 128);
  EXPECT_DOUBLE_EQ(curve_of(run, Metric::lr, XAxis::steps)[49 - 10].y,
                   run.config->train.rate(ParamGroup::matrix) * 0.6);
}

TEST(Curve, SmoothingKeepsAConstantAndItsBeginning) {
  const Curve flat(50, {0, 3});
  for (const CurvePoint& point : smoothed(flat, 0.95)) EXPECT_NEAR(point.y, 3, 1e-12);
  const Curve jump = {{0, 0}, {1, 1}};
  EXPECT_NEAR(smoothed(jump, 0.5)[1].y, (0 * 0.25 + 1 * 0.5) / 0.75, 1e-15);
  EXPECT_EQ(smoothed(jump, 0), jump);
  EXPECT_EQ(suitable_smoothing(20), 0);
  EXPECT_NEAR(suitable_smoothing(300), 0.9, 1e-12);
  EXPECT_NEAR(suitable_smoothing(1'000'000), 0.98, 1e-12);
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
