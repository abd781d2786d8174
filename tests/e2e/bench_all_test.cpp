// bench/all runs and its table is complete. Figures are not checked.
#include <sstream>

#include "base/json.h"
#include "support/run_binary.h"
#include "support/temp_folder.h"

namespace thimble {
namespace {

bool has_python() {
  return run_program("/bin/sh", {.arguments = {"-c", "python3 --version >/dev/null 2>&1"}}).exit_code == 0;
}

// `bin`: folder of thimble's programs.
RunResult bench_all(const std::filesystem::path& bin, const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {"python3", (source_folder() / "bench" / "all").string(), "--bin",
                                        bin.string()};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return run_program(
      "/usr/bin/env",
      {.arguments = arguments, .environment = {{"OMP_WAIT_POLICY", "passive"}}, .timeout_seconds = 1200});
}

std::filesystem::path built() {
  return binary_path().parent_path();
}

// Every row has a figure or a reason why there is none.
void expect_complete_rows(const RunResult& run, std::size_t least) {
  ASSERT_EQ(run.exit_code, 0) << run;
  const Json report = parse_json(run.out, "stdout");
  EXPECT_GE(report.at("rows").size(), least);
  for (const Json& row : report.at("rows").as_array()) {
    EXPECT_NE(row.at("work").as_string(), "");
    const bool measured = row.at("ours").size() > 0;
    EXPECT_TRUE(measured || !row.at("skipped").as_string().empty()) << row.dump();
    for (const char* side : {"ours", "peer", "ceiling"})
      for (const Json& sample : row.at(side).as_array()) EXPECT_GT(sample.as_double(), 0) << row.dump();
    for (const char* other : {"peer", "ceiling"})
      EXPECT_TRUE(row.at(other).size() == 0 || row.at(std::string(other) + "_name").as_string() != "")
          << row.dump();
  }
}

TEST(BenchAll, PrintsOneAlignedTable) {
  if (!has_python()) GTEST_SKIP() << "python3 is not installed";
  const RunResult run = bench_all(built(), {"--quick", "--only", "start-up", "--repeats", "1"});
  ASSERT_EQ(run.exit_code, 0) << run;
  std::istringstream lines(run.out);
  std::string header, row;
  while (std::getline(lines, header) && !header.starts_with("work ")) continue;
  ASSERT_TRUE(std::getline(lines, row)) << run;
  for (const char* column : {"ours", "peer", "ceiling", "ratio", "fraction", "must", "goal", "reached"})
    EXPECT_NE(header.find(column), std::string::npos) << run;
  EXPECT_EQ(row.find("start-up"), 0u) << run;
  const std::size_t ours = header.find("ours");
  EXPECT_EQ(row.substr(ours - 2, 2), "  ") << run;  // columns are aligned with the header
  EXPECT_NE(row[ours], ' ') << run;
}

TEST(BenchAll, RejectsUnknownBenches) {
  if (!has_python()) GTEST_SKIP() << "python3 is not installed";
  const RunResult run = bench_all(built(), {"--only", "decoed"});
  EXPECT_EQ(run.exit_code, 2) << run;
  EXPECT_NE(run.err.find("unknown bench 'decoed'"), std::string::npos) << run;
}

TEST(BenchAll, SkipsProgramsThatAreNotBuiltWithAReason) {
  if (!has_python()) GTEST_SKIP() << "python3 is not installed";
  const TempFolder nothing;
  const RunResult run = bench_all(nothing.path(), {"--quick", "--json", "--python", "/bin/false"});
  expect_complete_rows(run, 4);
  EXPECT_NE(run.out.find("thimble is not built"), std::string::npos) << run;
}

TEST(BenchAll, WritesItsTableBetweenTheMarkers) {
  if (!has_python()) GTEST_SKIP() << "python3 is not installed";
  const TempFolder folder;
  const auto page =
      folder.write("page.md", "before\n<!-- bench/all writes from here -->\nold\n<!-- to here -->\nafter\n");
  // No program is built in this folder: every row is skipped and written.
  const RunResult run = bench_all(folder.path(), {"--docs", page.string(), "--python", "/bin/false"});
  ASSERT_EQ(run.exit_code, 0) << run;
  const std::string text = folder.read("page.md");
  EXPECT_TRUE(text.starts_with("before\n<!-- bench/all writes from here -->\n")) << text;
  EXPECT_TRUE(text.ends_with("\n<!-- to here -->\nafter\n")) << text;
  EXPECT_EQ(text.find("old"), std::string::npos) << text;
  EXPECT_NE(text.find("| work | ours | peer | ceiling |"), std::string::npos) << text;
}

// Peers may be missing here, but all of thimble's programs are built.
TEST(BenchAll, MeasuresEveryRowFullTier) {
  if (!has_python()) GTEST_SKIP() << "python3 is not installed";
  const RunResult run = bench_all(built(), {"--quick", "--json"});
  expect_complete_rows(run, 14);
  if (HasFailure()) return;
  const Json report = parse_json(run.out, "stdout");
  for (const Json& row : report.at("rows").as_array())
    EXPECT_GT(row.at("ours").size(), 0u) << "expected a measurement: " << row.dump();
}

}  // namespace
}  // namespace thimble
