#include "report/report.h"

#include <algorithm>
#include <regex>

#include "base/files.h"
#include "report/chart.h"
#include "report/plot.h"
#include "report/run_files.h"

namespace thimble {
namespace {

constexpr const char* kHostile =
    "</p></section><script>alert(1)</script><img src=x onerror=alert(2)> @nonce@ \x01 & '\"";

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

TEST(Html, EscapesMarkupQuotesAndControlCharacters) {
  EXPECT_EQ(escaped("<a href=\"x\">'&"), "&lt;a href=&quot;x&quot;&gt;&#39;&amp;");
  EXPECT_EQ(escaped("a\x01"
                    "b\n\tc"),
            "a\xEF\xBF\xBD"
            "b\n\tc");
  EXPECT_EQ(escaped("\xFF"), "\xEF\xBF\xBD") << "XML parsers reject invalid UTF-8";
}

TEST(Html, ExpandsPlaceholdersInOnePass) {
  EXPECT_EQ(filled("@a@ me@home @b@@", {{"a", "@b@"}, {"b", "2"}}), "@b@ me@home 2@");
}

TEST(Report, ContainsTheDataOfTheRun) {
  const TempFolder folder;
  const RunData run = read_run(write_run(folder, {}));
  const std::string page = report_html(run);
  for (const char* part :
       {"<h1>run</h1>", "completed", "What limits this run: data", "What may help: more text",
        "few &lt;tokens&gt;", ">nats per token<", ">step<", "<span>&lt;text&gt;.txt&#39;</span></pre>",
        "loss, nats per token", "validation, bits per byte", "learning rate of the matrices",
        "tokens per second", "gradient norm", "Once upon a time", "step 40, 3.030 bits per byte",
        "A &lt;fast&gt; one", "/somewhere/text.txt", "12.3 k", "<dt>mlp_hidden</dt><dd>48</dd>"})
    EXPECT_TRUE(has(page, part)) << part;
}

TEST(Report, HasNoExternalResourcesInlineStylesOrHandlers) {
  const TempFolder folder;
  const std::string page = report_html(read_run(write_run(folder, {})));
  std::string without_names = std::regex_replace(page, std::regex("http://www.w3.org/2000/svg"), "");
  EXPECT_FALSE(std::regex_search(without_names, std::regex("https?://")));
  EXPECT_FALSE(std::regex_search(page, std::regex("<[^>]+ (style|on[a-z]+)=")));
}

TEST(Report, SamplesAreEscaped) {
  const TempFolder folder;
  const std::string page = report_html(read_run(write_run(folder, {.sample = kHostile})));
  EXPECT_FALSE(has(page, "<script>alert"));
  EXPECT_FALSE(has(page, "<img"));
  EXPECT_TRUE(has(page, "&lt;script&gt;alert(1)&lt;/script&gt;"));
  EXPECT_TRUE(has(page, "@nonce@ ")) << "a placeholder inside a sample is not expanded";
}

TEST(Report, ShowsWhatTheModelRepeats) {
  const TempFolder folder;
  const auto path = write_run(folder, {});
  const std::string shares =
      R"({"ngrams":{"8":{"share":0.5},"16":{"share":0.25},"32":{"share":null}},"run_share":0.125})";
  const auto with = [&](const std::string& held_out, const std::string& warns) {
    RunData run = read_run(path);
    Json result = parse_json(R"({"sampled":)" + shares + R"(,"held_out":)" + held_out +
                                 R"(,"repeats_training_data":)" + warns + "}",
                             "test");
    result.set("longest", Json::array({Json::object()
                                           .set("text", kHostile)
                                           .set("characters", 77)
                                           .set("document", 3)
                                           .set("offset", 1204)}));
    run.record.set("memorization", std::move(result));
    return report_html(run);
  };
  const std::string page = with(shares, "true");
  for (const char* part :
       {"<h2>Memorization</h2>", "<td>50.00 %</td><td>50.00 %</td>", "<td>-</td><td>-</td>",
        "<td>12.50 %</td>", "77 characters, in document 3 after 1204 characters", "before you share it"})
    EXPECT_TRUE(has(page, part)) << part;
  EXPECT_FALSE(has(page, "<script>alert"));
  EXPECT_TRUE(has(with("null", "false"), "<td>12.50 %</td><td>-</td>"));
  EXPECT_FALSE(has(with("null", "false"), "before you share it"));
  EXPECT_FALSE(has(report_html(read_run(path)), "Memorization"));
}

TEST(Report, TheNonceDependsOnTheContent) {
  const TempFolder folder;
  const auto nonce_of = [&](const WrittenRun& run) {
    const std::string page = report_html(read_run(write_run(folder, run)));
    std::smatch found;
    EXPECT_TRUE(std::regex_search(page, found, std::regex("script-src 'nonce-([0-9a-f]{32})'")));
    EXPECT_TRUE(has(page, "<script nonce=\"" + found[1].str()));
    return found[1].str();
  };
  EXPECT_NE(nonce_of({.name = "a", .sample = "x"}), nonce_of({.name = "a", .sample = "y"}));
}

TEST(Report, IsDeterministicAndReplacesAnOlderReport) {
  const TempFolder folder;
  const auto path = write_run(folder, {});
  PosixFileOps ops;
  const auto written = write_report(ops, path);
  EXPECT_EQ(written, path / "report.html");
  const std::string first = folder.read("run/report.html");
  folder.write("run/report.html", "old");
  write_report(ops, path);
  EXPECT_EQ(folder.read("run/report.html"), first);
}

TEST(Report, WorksForARunWithoutSteps) {
  const TempFolder folder;
  folder.write("empty/metrics.jsonl", "");
  EXPECT_TRUE(has(report_html(read_run(folder / "empty")), "No steps yet"));
}

TEST(Report, SizeDoesNotGrowWithTheNumberOfSteps) {
  const TempFolder folder;
  const auto page_of = [&](int steps) {
    return report_html(read_run(write_run(folder, {.name = fmt::format("{}", steps), .steps = steps})));
  };
  const auto points_in = [](const std::string& page) { return std::ranges::count(page, 'L'); };
  const std::string some = page_of(3'000), many = page_of(30'000);
  EXPECT_LT(points_in(many), 1.2 * static_cast<double>(points_in(some)));
  EXPECT_LT(static_cast<double>(many.size()), 1.2 * static_cast<double>(some.size()));
  EXPECT_TRUE(has(many, "30,000")) << "the last step";
}

TEST(Chart, TheAxesAreNamedAndALogarithmicOneSaysSo) {
  Chart chart{.title = "t", .x_label = "step", .y_label = "nats", .logarithmic = true};
  for (const bool wide : {false, true}) {
    chart.series = {{.name = "a", .curve = {{0, 1}, {10, wide ? 100.0 : 1.5}}}};
    for (const std::string& text : {chart_html(chart, 200), chart_svg(chart, {})}) {
      EXPECT_TRUE(has(text, ">step</text>"));
      EXPECT_TRUE(has(text, wide ? ">nats, log scale</text>" : ">nats</text>"));
    }
    EXPECT_EQ(has(text_plot(chart, {}), "log scale"), wide);
  }
}

TEST(Chart, SvgFilesUseTheColoursOfThePage) {
  const TempFolder folder;
  const std::vector<RunData> runs = {read_run(write_run(folder, {}))};
  const std::string svg = chart_svg(overlay(runs, Metric::loss, {}), {}), page = report_html(runs[0]);
  std::smatch found;
  for (const char* name : {"paper", "ink", "muted", "line", "s0", "s1", "s2", "s3", "s4", "s5"}) {
    ASSERT_TRUE(std::regex_search(page, found,
                                  std::regex(fmt::format("--{}: light-dark\\((#\\w+), (#\\w+)\\)", name))));
    const std::string light = fmt::format("--{}: {};", name, found[1].str()),
                      dark = fmt::format("--{}: {};", name, found[2].str());
    EXPECT_LT(svg.find(light), svg.find(dark)) << name;
    EXPECT_TRUE(has(svg, dark)) << name;
  }
}

TEST(Plot, DistinguishesRunsByNameColourAndDashes) {
  const TempFolder folder;
  std::vector<RunData> runs;
  for (int i = 0; i < 8; ++i)
    runs.push_back(read_run(write_run(folder, {.name = fmt::format("{}/run", i), .loss = i + 1.0})));
  EXPECT_EQ(run_names(runs)[3], "3/run");
  const std::string svg = chart_svg(overlay(runs, Metric::val_bpb, {}), {});
  for (int i = 0; i < 8; ++i) EXPECT_TRUE(has(svg, fmt::format(">{}/run<", i)));
  EXPECT_TRUE(has(svg, "class=\"curve s1\" stroke-dasharray=\"6 4\"")) << "the eighth run";
  while (runs.size() <= kMaxPlottedRuns) runs.push_back(runs.front());
  EXPECT_THROW(overlay(runs, Metric::loss, {}), Error);
}

TEST(Plot, APageOfSeveralRunsComparesThem) {
  const TempFolder folder;
  std::vector<RunData> runs = {
      read_run(write_run(folder, {.name = "a"})),
      read_run(write_run(folder, {.name = "b", .settings = {"matrix_lr=0.01"}, .loss = 3}))};
  const std::vector<Metric> one = {Metric::loss};
  const std::string page = plot_html(runs, one, {});
  EXPECT_TRUE(has(page, "<th scope=\"row\">validation loss</th><td>2.1000</td><td>3.1000</td>"));
  EXPECT_TRUE(has(page, "<th scope=\"row\">matrix_lr</th><td>0.02</td><td>0.01</td>"));
  EXPECT_FALSE(has(page, "<th scope=\"row\">dim</th>")) << "equal in both";
  EXPECT_TRUE(has(page, "&lt;text&gt;.txt"));
  runs.pop_back();
  EXPECT_FALSE(has(plot_html(runs, one, {}), "Final values"));
}

TEST(Plot, RunNamesAreEscaped) {
  const TempFolder folder;
  std::vector<RunData> runs = {read_run(write_run(folder, {.name = "<b>a&b"})),
                               read_run(write_run(folder, {.name = "b"}))};
  const std::vector<Metric> metrics = metrics_of(runs);
  EXPECT_FALSE(has(plot_html(runs, metrics, {}), "<b>a"));
  EXPECT_FALSE(has(chart_svg(overlay(runs, Metric::loss, {}), {}), "<b>a"));
  EXPECT_EQ(metrics.size(), all_metrics().size());
}

}  // namespace
}  // namespace thimble
