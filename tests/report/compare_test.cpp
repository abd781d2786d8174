#include "report/compare.h"

#include "report/run_files.h"

namespace thimble {
namespace {

class Compare : public testing::Test {
 protected:
  void add(const std::string& name, std::vector<std::string> settings, double loss) {
    runs_.push_back(
        read_run(write_run(folder_, {.name = name, .settings = std::move(settings), .loss = loss})));
  }

  TempFolder folder_;
  std::vector<RunData> runs_;
};

TEST_F(Compare, GroupsSeedsAndTestsGroups) {
  add("a1", {"seed=1"}, 2.00);
  add("a2", {"seed=2", "micro_batch=4"}, 2.02);
  add("b1", {"seed=1", "layers=3"}, 1.90);
  add("b2", {"seed=2", "layers=3"}, 1.93);
  add("b3", {"seed=3", "layers=3"}, 1.91);
  const Comparison comparison = compare_runs(runs_);
  ASSERT_EQ(comparison.groups.size(), 2u);
  EXPECT_EQ(comparison.groups[1].runs, (std::vector<std::size_t>{2, 3, 4}));
  ASSERT_EQ(comparison.differences.size(), 1u);
  EXPECT_EQ(comparison.differences[0].key, "layers");
  EXPECT_EQ(comparison.differences[0].values, (std::vector<std::string>{"2", "3"}));
  EXPECT_TRUE(comparison.warnings.empty());
  ASSERT_EQ(comparison.tests.size(), 1u);
  const WelchTest& test = *comparison.tests[0].welch;
  const double bits = 1 / std::log(2.0);
  EXPECT_NEAR(test.difference, (1.9133333333 - 2.01) * bits, 1e-8);
  // Computed manually: a 2.00 2.02, b 1.90 1.93 1.91; variances 2e-4 and 2.333e-4; t = -0.096667 /
  // 0.0133333.
  EXPECT_NEAR(test.t, -7.25, 1e-6);
  EXPECT_NEAR(test.degrees, 2.426540, 1e-5);
  EXPECT_LT(test.low, test.difference);
  EXPECT_LT(test.high, 0);
  const std::string text = comparison_text(comparison);
  EXPECT_NE(text.find("B: val bpb -0.1395 (95 % interval "), std::string::npos) << text;
  EXPECT_NE(text.find("± "), std::string::npos) << text;
  const Json json = comparison_json(comparison);
  EXPECT_EQ(json.at("groups").as_array()[1].at("val_bpb").at("n").as_int(), 3);
  EXPECT_EQ(json.at("tests").as_array()[0].at("p").as_double(), test.p);
  EXPECT_EQ(json.at("settings").at("layers").at("B").as_string(), "3");
}

TEST_F(Compare, ReportsThatATestNeedsTwoSeeds) {
  add("a", {"seed=1"}, 2);
  add("b", {"lr=0.02"}, 2.5);
  const Comparison comparison = compare_runs(runs_);
  EXPECT_FALSE(comparison.tests.at(0).welch);
  EXPECT_NE(comparison_text(comparison).find("at least two seeds"), std::string::npos);
  EXPECT_TRUE(comparison_json(comparison).at("tests").as_array()[0].at("p").is_null());
}

TEST_F(Compare, WarnsOfEqualSeedsAndUnfinishedRuns) {
  add("a", {"seed=1"}, 2);
  add("b", {"seed=1"}, 2);
  runs_.push_back(read_run(write_run(folder_, {.name = "c", .settings = {"seed=5"}, .ended = false})));
  const Comparison comparison = compare_runs(runs_);
  EXPECT_EQ(
      comparison.warnings,
      (std::vector<std::string>{"a and b have the same settings and the same seed: they count as one seed",
                                "c has not finished: unfinished"}));
}

// Copies of a run would make any difference look significant.
TEST_F(Compare, CountsEqualSeedsOnce) {
  add("a1", {"seed=1"}, 2.00);
  add("a1-again", {"seed=1", "checkpoint_activations=true"}, 2.01);
  add("b1", {"seed=1", "layers=3"}, 1.90);
  add("b2", {"seed=2", "layers=3"}, 1.92);
  Comparison comparison = compare_runs(runs_);
  ASSERT_EQ(comparison.groups.size(), 2u);
  EXPECT_EQ(comparison.groups[0].runs.size(), 2u);
  EXPECT_EQ(comparison.groups[0].seeds, 1u);
  EXPECT_EQ(comparison.groups[0].val_bpb.n, 1u);
  EXPECT_FALSE(comparison.tests.at(0).welch);
  add("a2", {"seed=2"}, 2.02);
  comparison = compare_runs(runs_);
  EXPECT_EQ(comparison.groups[0].val_bpb.n, 2u);
  EXPECT_TRUE(comparison.tests.at(0).welch);
}

TEST_F(Compare, WarnsOfDifferentNumbersOfSteps) {
  add("a", {"seed=1"}, 2);
  runs_.push_back(read_run(write_run(folder_, {.name = "b", .settings = {"seed=2"}, .steps = 20})));
  EXPECT_EQ(compare_runs(runs_).warnings,
            (std::vector<std::string>{"the runs have different numbers of steps: from 20 to 40"}));
}

TEST_F(Compare, TablesFitTheWidth) {
  add("a", {"seed=1"}, 2);
  add("b", {"lr=0.02"}, 2.5);
  const Comparison comparison = compare_runs(runs_);
  const auto longest = [](const std::string& text) {
    std::size_t most = 0, length = 0;
    for (const char c : text) most = std::max(most, length = c == '\n' ? 0 : length + 1);
    return most;
  };
  const std::string wide = comparison_text(comparison), narrow = comparison_text(comparison, 80);
  EXPECT_GT(longest(wide.substr(0, wide.find("\ncompared with"))), 80u);
  EXPECT_LE(longest(narrow.substr(0, narrow.find("\ncompared with"))), 80u) << narrow;
}

TEST_F(Compare, ArtifactSizesAreReported) {
  add("a", {}, 2);
  folder_.write("a.thimble", std::string(4321, 'x'));
  runs_[0] = read_run(runs_[0].folder);
  EXPECT_EQ(compare_runs(runs_).runs[0].artifact_bytes, 4321u);
}

}  // namespace
}  // namespace thimble
