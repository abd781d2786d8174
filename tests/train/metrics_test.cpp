#include "train/metrics.h"

#include <fmt/format.h>

#include <limits>
#include <sstream>

#include "support/message_of.h"
#include "support/temp_folder.h"
#include "train/reporter.h"

namespace thimble {
namespace {

// The lines that the reporter writes for these steps.
std::vector<std::string> written(const std::vector<StepReport>& reports) {
  const TempFolder folder;
  PosixFileOps ops;
  const Config config;
  const Log log = Log::nowhere();
  const ProgressOutput progress = ProgressOutput::nowhere();
  {
    MetricsFile metrics(ops, folder / "metrics.jsonl");
    Reporter reporter(config, log, progress, metrics, {});
    for (const StepReport& report : reports) reporter.step(report);
  }
  std::vector<std::string> lines;
  std::istringstream text(folder.read("metrics.jsonl"));
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

StepReport report_of(double loss) {
  StepReport report;
  report.step = 1234567;
  report.result = {
      .loss = loss, .grad_norm = 1.25e-7, .updated = true, .tokens = 64, .targets = 60, .bytes = 128};
  report.result.input_seconds = 0.1;
  report.clipped = true;
  report.multiplier = 1;
  report.seconds = 0.001;
  return report;
}

void expect_as_json(const StepLine& step, const std::string& line) {
  const Json event = parse_json(line, "line");
  EXPECT_EQ(event.at("event").as_string(), "step") << line;
  EXPECT_EQ(step.step, event.at("step").as_int()) << line;
  EXPECT_EQ(step.loss, event.at("loss").as_double()) << line;
  EXPECT_EQ(step.targets, event.at("targets").as_int()) << line;
  EXPECT_EQ(step.bytes, event.at("bytes").as_uint()) << line;
  EXPECT_EQ(step.multiplier, event.at("lr_multiplier").as_double()) << line;
  EXPECT_EQ(step.grad_norm, event.at("grad_norm").as_double()) << line;
  EXPECT_EQ(step.clipped, event.at("clipped").as_bool()) << line;
  EXPECT_EQ(step.seconds, event.at("seconds").as_double()) << line;
  EXPECT_EQ(step.input_seconds, event.at("input_seconds").as_double()) << line;
}

TEST(StepLines, ParseAllLinesOfTheReporter) {
  std::vector<StepReport> reports = {report_of(2.5), report_of(0.1), report_of(1e-300)};
  reports.push_back(report_of(3));
  reports.back().qat_bits = 6;
  reports.push_back(report_of(3));
  reports.back().result.loss_scale = 65536;
  for (const std::string& line : written(reports)) {
    const std::optional<StepLine> step = step_in(line);
    ASSERT_TRUE(step) << "the fast parser rejects a line of the reporter: " << line;
    expect_as_json(*step, line);
  }
}

TEST(StepLines, RejectOtherLayouts) {
  StepReport skipped = report_of(std::numeric_limits<double>::infinity());
  skipped.result.skipped = true;
  for (const std::string& line : written({skipped})) EXPECT_FALSE(step_in(line)) << line;
  EXPECT_FALSE(step_in(R"({"event":"validation","step":3,"val_loss":2.0})"));
  EXPECT_FALSE(step_in(""));
}

TEST(StepLines, AgreeWithParseJsonOnDamagedLines) {
  const std::string line = written({report_of(2.5)}).front();
  ASSERT_TRUE(step_in(line));
  int taken = 0;
  const auto compare = [&](const std::string& damaged) {
    const std::optional<StepLine> step = step_in(damaged);
    if (!step) return;
    ++taken;
    expect_as_json(*step, damaged);  // throws if it is not JSON
  };
  for (std::size_t i = 0; i < line.size(); ++i) {
    compare(line.substr(0, i));
    compare(line.substr(0, i) + line.substr(i + 1));
    for (const char c : std::string("0123456789.eE+-\"{}, ntfi\n") + '\0') {
      std::string other = line;
      other[i] = c;
      compare(other);
      compare(line.substr(0, i) + c + line.substr(i));
    }
  }
  EXPECT_GT(taken, 500) << "a changed digit gives another valid line";
}

std::vector<std::int64_t> steps_in(MetricsReader& reader) {
  std::vector<std::int64_t> steps;
  while (reader.next()) steps.push_back(reader.step());
  return steps;
}

constexpr const char* kLine1 = R"({"event":"sample","step":1,"text":"a"})";
constexpr const char* kLine2 = R"({"event":"sample","step":2,"text":"b"})";

TEST(MetricsReader, ReadsCompleteLinesAndContinuesFromAPlace) {
  const TempFolder folder;
  const auto path = folder.write("m", fmt::format("{}\n{}\n{}", kLine1, kLine2, kLine1));
  MetricsReader reader(path);
  EXPECT_EQ(steps_in(reader), (std::vector<std::int64_t>{1, 2})) << "the third line is incomplete";
  EXPECT_EQ(reader.place().lines, 2u);
  folder.write("m", fmt::format("{}\n{}\n{}\n?\n", kLine1, kLine2, kLine1));
  MetricsReader rest(path, reader.place());
  ASSERT_TRUE(rest.next());
  EXPECT_EQ(rest.step(), 1);
  ASSERT_TRUE(rest.next());
  EXPECT_NE(message_of([&] { rest.event(); }).find(":4:1:"), std::string::npos)
      << message_of([&] { rest.event(); });
  EXPECT_FALSE(rest.next());
}

TEST(MetricsReader, ReadsLinesThatSpanTwoReads) {
  const TempFolder folder;
  std::string text;
  for (int step = 1; step <= 5000; ++step)  // several times the size of one read
    text += fmt::format(R"({{"event":"sample","step":{},"text":"{}"}})"
                        "\n",
                        step, std::string(static_cast<std::size_t>(step % 97), 'x'));
  MetricsReader reader(folder.write("m", text));
  const std::vector<std::int64_t> steps = steps_in(reader);
  ASSERT_EQ(steps.size(), 5000u);
  EXPECT_EQ(steps.back(), 5000);
  EXPECT_EQ(reader.place().offset, text.size());
}

TEST(MetricsReader, RejectsAnOverlongLine) {
  const TempFolder folder;
  MetricsReader reader(folder.write("m", fmt::format("{}\n{}", kLine1, std::string(5 << 20, '\0'))));
  ASSERT_TRUE(reader.next());
  ASSERT_TRUE(reader.next());
  EXPECT_NE(message_of([&] { reader.step(); }).find(":2: expected lines of at most"), std::string::npos);
  EXPECT_FALSE(reader.next());
}

// After a loss of power, data that was not flushed may read as zeros.
TEST(MetricsFile, KeepsTheLinesBeforeTheStepAndBeforeDamage) {
  const std::string complete = fmt::format("{}\n{}\n", kLine1, kLine2);
  for (const std::string& tail : {std::string(), std::string("{\"event\""), fmt::format("?\n{}\n", kLine2),
                                  std::string(5 << 20, '\0'), fmt::format("{{\"step\":3}}\n{}\n", kLine1)}) {
    const TempFolder folder;
    const auto path = folder.write("m", complete + tail);
    PosixFileOps ops;
    MetricsFile(ops, path).keep_until(2);
    EXPECT_EQ(folder.read("m"), complete);
    MetricsFile(ops, path).keep_until(1);
    EXPECT_EQ(folder.read("m"), fmt::format("{}\n", kLine1));
    MetricsFile(ops, path).keep_until(-1);
    EXPECT_EQ(folder.read("m"), "");
  }
}

}  // namespace
}  // namespace thimble
