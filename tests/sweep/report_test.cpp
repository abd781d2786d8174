#include "sweep/report.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>

#include "base/error.h"
#include "base/rng.h"
#include "base/text.h"
#include "support/run_binary.h"
#include "support/temp_folder.h"
#include "sweep/plan.h"

namespace thimble::sweep_report_test {
namespace {

namespace fs = std::filesystem;

Json line_of(const std::string& variant, int seed, double bits) {
  return Json::object()
      .set("variant", variant)
      .set("base", variant == "base")
      .set("seed", seed)
      .set("steps", 10)
      .set("status", "completed")
      .set("score", "best")
      .set("val_bpb", bits + 1)
      .set("best_bpb", bits);
}

std::vector<SweepResult> results_of(const std::vector<Json>& lines, const fs::path& folder = {}) {
  std::vector<SweepResult> results;
  for (const Json& line : lines) results.push_back(sweep_result(line, folder));
  return results;
}

// 40 documents with different losses; `gain` is the mean and `spread` the deviation of what a
// variant gains on them, in nats per byte.
void write_scores(const TempFolder& folder, const std::string& name, double gain, double spread,
                  std::string_view unit = "document", int count = 40) {
  std::string lines;
  Rng rng(1), noise(2);
  for (int i = 0; i < count; ++i) {
    const double bytes = 100 + static_cast<double>(rng.below(100));
    const double nats = bytes * (1 + rng.uniform_double() - gain + spread * noise.normal());
    lines += Json::object()
                 .set(std::string(unit), i)
                 .set("nats", nats)
                 .set("tokens", 30)
                 .set("bytes", static_cast<std::int64_t>(bytes))
                 .dump() +
             "\n";
  }
  folder.write(name, lines);
}

class SweepReportOfDocuments : public testing::Test {
 protected:
  void add(const std::string& variant, double bits, double gain, double spread) {
    for (int seed = 1; seed <= 3; ++seed) {
      const std::string name = variant + std::to_string(seed) + ".jsonl";
      write_scores(folder_, name, gain, spread);
      // The seeds of all variants differ alike, but not exactly.
      const double of_seed =
          bits + 0.01 * seed + 0.0005 * static_cast<double>((variant.size() * 7 + seed * 5) % 4);
      lines_.push_back(line_of(variant, seed, of_seed).set("scores", name));
    }
  }
  SweepReport report(const ReportRequest& request = {}) {
    results_ = results_of(lines_, folder_.path());
    return sweep_report(results_, request);
  }

  TempFolder folder_;
  std::vector<Json> lines_;
  std::vector<SweepResult> results_;
};

TEST_F(SweepReportOfDocuments, DecidesDifferencesThatHoldOnDocumentsAndSeeds) {
  add("base", 2.0, 0, 0);
  add("better", 1.9, 0.07, 0.01);
  add("worse", 2.2, -0.14, 0.01);
  add("alike", 2.0, 0, 0.05);
  const SweepReport found = report();
  EXPECT_EQ(found.variants.front().name, "base");
  EXPECT_EQ(found.part_name, "documents");
  EXPECT_EQ(found.tests, 3u);
  EXPECT_EQ(found.find("better")->verdict, Verdict::better);
  EXPECT_EQ(found.find("worse")->verdict, Verdict::worse);
  EXPECT_EQ(found.find("alike")->verdict, Verdict::undecided);
  const SweepDifference& difference = *found.find("better")->difference;
  EXPECT_EQ(difference.parts, 40u);
  EXPECT_EQ(difference.seeds, 3u);
  EXPECT_NEAR(difference.difference, -0.1, 0.002);
  EXPECT_NEAR(difference.interval_95.high + difference.interval_95.low, 2 * difference.difference, 1e-9);
  EXPECT_GT(difference.interval_95.high - difference.difference,
            1.9 * std::hypot(difference.of_seeds->error, difference.over_parts->deviation));
  EXPECT_GE(*difference.holm, *difference.p);
  EXPECT_LT(difference.interval_95.high, 0);
}

// Seeds agree, but the gain is of a few documents only.
TEST_F(SweepReportOfDocuments, ADifferenceOfFewDocumentsIsUndecided) {
  add("base", 2.0, 0, 0);
  add("uneven", 1.95, -0.1, 0.5);
  const SweepDifference difference = *report().find("uneven")->difference;
  EXPECT_LT(difference_test(difference.difference, std::vector{*difference.of_seeds}).p, 0.05);
  EXPECT_GT(*difference.p, 0.05);
  EXPECT_EQ(report().find("uneven")->verdict, Verdict::undecided);
}

TEST_F(SweepReportOfDocuments, DoesNotDependOnTheOrderOfTheLines) {
  add("base", 2.0, 0, 0);
  add("a", 1.9, 0.07, 0.01);
  add("b", 2.2, -0.14, 0.01);
  const std::string text = report_text(report(), {});
  const std::string json = report_json(report()).dump();
  std::ranges::reverse(lines_);
  EXPECT_EQ(report_text(report(), {}), text);
  EXPECT_EQ(report_json(report()).dump(), json);
}

TEST_F(SweepReportOfDocuments, ScoresOfOtherTextAreNotCompared) {
  add("base", 2.0, 0, 0);
  add("other", 1.9, 0.07, 0.01);
  write_scores(folder_, "other2.jsonl", 0.07, 0.01, "document", 30);
  EXPECT_EQ(report().find("other")->difference->parts, 0u);
  write_scores(folder_, "other2.jsonl", 0.07, 0.01, "block");
  EXPECT_EQ(report().find("other")->difference->parts, 0u);
  EXPECT_TRUE(report().find("other")->difference->of_seeds) << "the seeds can still be compared";
  folder_.write("other2.jsonl", "{\"document\": 0}\n");
  EXPECT_THROW(report(), Error);
}

TEST(SweepReport, DecidesNothingWithOneSeed) {
  const auto results = results_of({line_of("base", 1, 2), line_of("a", 1, 1)});
  const SweepReport report = sweep_report(results, {});
  EXPECT_EQ(report.find("a")->verdict, Verdict::one_seed);
  EXPECT_EQ(report.tests, 0u);
  EXPECT_EQ(sweep_report(results, {.base = "a"}).variants.front().name, "a");
  EXPECT_THROW(sweep_report(results, {.base = "c"}), Error);
}

TEST(SweepReport, CountsRunsThatDivergedOrFailed) {
  const auto results = results_of({line_of("base", 1, 2), line_of("base", 2, 2.1), line_of("a", 1, 1),
                                   line_of("a", 2, 1).set("status", "diverged"),
                                   line_of("b", 1, 1).set("status", "failed"), line_of("c", 3, 1.0)});
  const SweepReport report = sweep_report(results, {});
  EXPECT_EQ(report.find("a")->diverged, 1u);
  EXPECT_EQ(report.find("a")->values, (std::vector<double>{1}));
  EXPECT_EQ(report.find("a")->verdict, Verdict::incomplete);
  EXPECT_EQ(report.find("b")->failed, 1u);
  EXPECT_EQ(report.find("b")->verdict, Verdict::incomplete);
  EXPECT_EQ(report.find("c")->verdict, Verdict::no_common_seed);
  EXPECT_NE(report_text(report, {}).find("1 diverged"), std::string::npos);
}

TEST(SweepReport, UsesTheCheckpointOfTheSweep) {
  const auto results = results_of({line_of("base", 1, 2), line_of("a", 1, 1).set("score", "last")});
  const SweepReport report = sweep_report(results, {});
  EXPECT_EQ(report.find("base")->values, (std::vector<double>{2}));
  EXPECT_EQ(report.find("a")->values, (std::vector<double>{2})) << "val_bpb";
}

TEST(SweepReport, RefusesTwoResultsOfOneSeed) {
  const auto results = results_of({line_of("base", 1, 2), line_of("base", 1, 2.1).set("steps", 20)});
  try {
    sweep_report(results, {});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.hint(), "choose with --steps 10 or --steps 20");
  }
  EXPECT_EQ(sweep_report(results, {.steps = 20}).find("base")->values, (std::vector<double>{2.1}));
  EXPECT_THROW(sweep_report(results, {.steps = 30}), Error);
}

// The figures are those of the table in docs/lab/2026-11-ablation.md.
TEST(SweepReport, ReadsTheRecordedAblation) {
  const std::vector<fs::path> file = {source_folder() / "records/ablation.jsonl"};
  const std::vector<SweepResult> results = read_results(file, Log::nowhere());
  EXPECT_EQ(results.size(), 62u);
  const SweepReport report = sweep_report(results, {.steps = 1500});
  EXPECT_EQ(report.base, "golf");
  const VariantSummary& best = *report.find("golf-best");
  EXPECT_NEAR(best.moments.mean, 1.3160, 5e-5);
  EXPECT_NEAR(best.difference->difference, -0.0955, 5e-5);
  EXPECT_EQ(best.bytes, 15'699'497);
  EXPECT_NEAR(moments_of(best.packed).mean, 1.3194, 5e-5);
  EXPECT_EQ(best.verdict, Verdict::better);
  EXPECT_TRUE(report.find("golf-plus")->packed_apart);
  EXPECT_FALSE(best.packed_apart);
  const Json record = record_of(report, "golf-best", best);
  EXPECT_NEAR(record.at("p").as_double(), 0.000126, 1e-6) << "records/golf-best/record.json";
  EXPECT_TRUE(record.at("holds").as_bool());
  EXPECT_EQ(sweep_report(results, {.steps = 500}).variants.size(), 33u);

  const std::string svg = dot_plot_svg(report_plot(report));
  EXPECT_TRUE(svg.starts_with("<svg "));
  EXPECT_NE(svg.find(">golf-best</text>"), std::string::npos);
  EXPECT_NE(svg.find("s1 hollow"), std::string::npos);
  const std::string text = dot_plot_text(report_plot(report), 80);
  for (std::string_view rest = text; !rest.empty(); rest.remove_prefix(rest.find('\n') + 1))
    EXPECT_LE(rest.find('\n'), 80u) << text;
}

TEST(SweepReport, TheFileOfTheAblationHasItsVariants) {
  const fs::path file = source_folder() / "records/ablation.toml";
  std::ifstream stream(file);
  const SweepPlan plan = parse_sweep(std::string{std::istreambuf_iterator<char>(stream), {}}, file.string());
  EXPECT_EQ(plan.variants.size(), 48u);
  EXPECT_EQ(plan.seeds.size(), 3u);
  EXPECT_TRUE(plan.pack);
  for (const SweepResult& result :
       read_results(std::vector{source_folder() / "records/ablation.jsonl"}, Log::nowhere()))
    EXPECT_TRUE(std::ranges::count(plan.variants, result.variant, &SweepVariant::name) == 1)
        << result.variant;
}

// Results.

TEST(SweepResults, AnIncompleteLastLineIsLeftOutAndReplaced) {
  const TempFolder folder;
  const std::string whole = line_of("a", 1, 2).dump() + "\n";
  folder.write("results.jsonl", whole + whole.substr(0, 30));
  std::string warning;
  const Log log(LogLevel::info, [&](LogLevel, std::string_view text) { warning += text; });
  EXPECT_EQ(read_results(std::vector{folder.path()}, log).size(), 1u);
  EXPECT_NE(warning.find("the last line is incomplete"), std::string::npos);
  PosixFileOps ops;
  {
    ResultsFile file(ops, folder.path(), Log::nowhere());
    EXPECT_EQ(file.results().size(), 1u);
    EXPECT_THROW(ResultsFile(ops, folder.path(), Log::nowhere()), Error) << "it is locked";
    file.add(line_of("b", 1, 3));
  }
  EXPECT_EQ(folder.read("results.jsonl"), whole + line_of("b", 1, 3).dump() + "\n");
}

TEST(SweepResults, AnyOtherDamagedLineIsAnErrorWithItsNumber) {
  const TempFolder folder;
  for (const char* damaged :
       {"no JSON\n", "{}\n", "{\"variant\": 3}\n", "[]\n", "{\"variant\":\"a\",\"seed\":\"x\"}\n"}) {
    folder.write("results.jsonl", line_of("a", 1, 2).dump() + "\n" + damaged);
    try {
      read_results(std::vector{folder.path()}, Log::nowhere());
      ADD_FAILURE() << damaged;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("results.jsonl:2 is not the result of a run"),
                std::string::npos)
          << error.what();
    }
  }
}

TEST(SweepResults, ALaterLineReplacesAFailedOrUnpackedRun) {
  const TempFolder folder;
  const auto count = [&](const std::vector<Json>& lines) {
    std::string text;
    for (const Json& line : lines) text += line.dump() + "\n";
    folder.write("results.jsonl", text);
    return read_results(std::vector{folder.path()}, Log::nowhere());
  };
  EXPECT_EQ(count({line_of("a", 1, 2).set("status", "failed").set("steps", 0), line_of("a", 1, 2)}).size(),
            1u);
  const auto packed = count({line_of("a", 1, 2).set("packed_bpb", 2.5), line_of("a", 1, 2)});
  ASSERT_EQ(packed.size(), 1u);
  EXPECT_EQ(packed.front().packed_bpb, 2.5) << "the packed one is kept";
  EXPECT_EQ(count({line_of("a", 1, 2), line_of("a", 2, 2)}).size(), 2u);
  EXPECT_EQ(count({line_of("a", 1, 2), line_of("a", 1, 2).set("settings_digest", "other")}).size(), 2u);
}

}  // namespace
}  // namespace thimble::sweep_report_test
