#include "train/reporter.h"

#include <gtest/gtest.h>

#include <limits>

#include "base/json.h"
#include "base/table.h"
#include "support/temp_folder.h"

namespace thimble {
namespace {

struct Watched {
  explicit Watched(int width, double max_seconds = 0) {
    config.train.steps = 100;
    config.train.max_seconds = max_seconds;
    output = {.enabled = true,
              .terminal = true,
              .width = width,
              .write = [this](std::string_view text) { screen = text; },
              .seconds = [this] { return now; }};
  }

  void steps(Reporter& reporter, int count) {
    for (int i = 1; i <= count; ++i) {
      now += 0.5;
      StepReport report;
      report.step = i;
      report.result = {
          .loss = 5.0 / i, .grad_norm = 0.25, .updated = true, .tokens = 64, .targets = 64, .bytes = 128};
      report.multiplier = 0.5;
      report.seconds = 0.5;
      report.elapsed_seconds = config.train.max_seconds > 0 ? 0.5 * (i - untimed) : 0;
      report.untimed_steps = untimed;
      reporter.step(report);
    }
  }

  std::string line() const { return screen.substr(1, screen.size() - 4); }  // without \r and escape codes

  TempFolder folder;
  PosixFileOps ops;
  Config config;
  double now = 100;
  int untimed = 0;  // number of untimed steps at the start
  std::string screen;
  std::string logged;
  Log log{LogLevel::info, [this](LogLevel, std::string_view line) { logged += std::string(line) + "\n"; }};
  ProgressOutput output;
  MetricsFile metrics{ops, folder / "metrics.jsonl"};
};

TEST(Reporter, TheLiveLineShowsAllKnownFigures) {
  Watched watched(200);
  Reporter reporter(watched.config, watched.log, watched.output, watched.metrics, {});
  reporter.set_peak(1e6, 512e6);  // the peak is 512 tokens/s
  watched.steps(reporter, 20);
  for (const char* part : {"20%", "2 steps/s", "ETA 40.0 s", "loss 0.8994", "bpb", "128 tokens/s",
                           "lr 0.0005", "|g| 0.25", "25 % of GEMM peak", "MiB", "▁"})
    EXPECT_NE(watched.line().find(part), std::string::npos) << part << "\n" << watched.line();
  EXPECT_EQ(watched.line().find("val "), std::string::npos) << "there was no validation";
}

// A peak below the speed of training was disturbed by other programs.
TEST(Reporter, ADisturbedPeakIsNotShown) {
  Watched watched(200);
  Reporter reporter(watched.config, watched.log, watched.output, watched.metrics, {});
  reporter.set_peak(1e6, 100e6);  // 100 tokens/s, but 128 are trained
  watched.steps(reporter, 20);
  EXPECT_NE(watched.line().find("128 tokens/s"), std::string::npos) << watched.line();
  EXPECT_EQ(watched.line().find("GEMM"), std::string::npos) << watched.line();
}

TEST(Reporter, UnknownFiguresAreOmittedAndNarrowTerminalsDropTheLastOnes) {
  for (int width : {60, 80, 100, 140}) {
    Watched watched(width);
    Reporter reporter(watched.config, watched.log, watched.output, watched.metrics, {});
    watched.steps(reporter, 20);
    EXPECT_LT(display_width(watched.line()), static_cast<std::size_t>(width)) << watched.line();
    EXPECT_NE(watched.line().find("loss 0.8994"), std::string::npos) << watched.line();
    EXPECT_EQ(watched.line().find("GEMM"), std::string::npos) << watched.line();
  }
}

TEST(Reporter, TheEtaFollowsTheTimeLimitIfItEndsTheRunFirst) {
  Watched watched(120, 20);
  Reporter reporter(watched.config, watched.log, watched.output, watched.metrics, {});
  watched.steps(reporter, 20);  // ten of twenty seconds
  EXPECT_NE(watched.line().find(" 50%"), std::string::npos) << watched.line();
  EXPECT_NE(watched.line().find("ETA 10.0 s"), std::string::npos) << watched.line();
}

TEST(Reporter, UntimedStepsDoNotAffectTheExpectedNumberOfSteps) {
  Watched watched(120, 20);
  watched.untimed = 10;
  Reporter reporter(watched.config, watched.log, watched.output, watched.metrics, {});
  watched.steps(reporter, 20);  // 10 untimed, then 10 in 5 of 20 seconds: 50 steps expected
  EXPECT_NE(watched.line().find(" 40%"), std::string::npos) << watched.line();
}

TEST(Reporter, AValidationPrintsARowAndWritesAnEvent) {
  Watched watched(80);
  Reporter reporter(watched.config, watched.log, watched.output, watched.metrics, {});
  watched.steps(reporter, 2);
  reporter.validation(
      {.step = 2, .score = {.nats = 30, .tokens = 10, .bytes = 20}, .best = true, .weights = "ema"});
  EXPECT_NE(watched.logged.find("step      2  train 3.7500  val 3.0000  2.1640 bits per byte  ema  best"),
            std::string::npos)
      << watched.logged;
  watched.metrics.flush();
  EXPECT_NE(watched.folder.read("metrics.jsonl").find(R"("best":true,"weights":"ema")"), std::string::npos);
  EXPECT_EQ(read_history(watched.folder / "metrics.jsonl").steps(), 2) << "the file can be read back";
}

TEST(Reporter, TheLoaderWarningIsPrintedOnce) {
  Watched watched(80);
  Reporter reporter(watched.config, watched.log, watched.output, watched.metrics, {});
  for (int i = 1; i <= 3; ++i) {
    StepReport report;
    report.step = i;
    report.result.warning = "epoch begins";
    reporter.step(report);
  }
  EXPECT_EQ(watched.logged, "epoch begins\n");
}

TEST(Reporter, ASkippedStepIsReportedAndExcludedFromTheMeans) {
  Watched watched(200);
  Reporter reporter(watched.config, watched.log, watched.output, watched.metrics, {});
  watched.steps(reporter, 4);
  EXPECT_EQ(watched.line().find("scale"), std::string::npos) << "no loss scaling yet";
  const double loss = reporter.history().smoothed_loss();
  StepReport report;
  report.step = 5;
  report.result.loss = std::numeric_limits<double>::quiet_NaN();
  report.result.grad_norm = std::numeric_limits<double>::infinity();
  report.result.skipped = true;
  report.result.loss_scale = 32768;
  watched.now += 0.5;
  reporter.step(report);
  EXPECT_EQ(watched.logged, "step 5 skipped: gradient overflow, scale now 32768\n");
  EXPECT_NE(watched.line().find("scale 32768"), std::string::npos) << watched.line();
  EXPECT_EQ(reporter.history().smoothed_loss(), loss);
  watched.metrics.flush();
  const std::string metrics = watched.folder.read("metrics.jsonl");
  const Json event = parse_json(metrics.substr(metrics.rfind("{\"event\"")), "metrics");
  EXPECT_EQ(event.at("loss_scale").as_double(), 32768);
  EXPECT_TRUE(event.at("skipped").as_bool());
  EXPECT_EQ(event.find("grad_norm"), nullptr) << "JSON has no infinity";
  const RunHistory again = read_history(watched.folder / "metrics.jsonl");
  EXPECT_EQ(again.steps(), 5);
  EXPECT_EQ(again.skipped(), 1);
  EXPECT_EQ(again.smoothed_loss(), loss);
}

}  // namespace
}  // namespace thimble
