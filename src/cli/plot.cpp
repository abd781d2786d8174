#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <exception>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "cli/console.h"
#include "cli/option.h"
#include "cli/parse.h"
#include "report/compare.h"
#include "report/plot.h"
#include "report/report.h"

namespace thimble {

namespace {

constexpr std::size_t kPlainPlotWidth = 80;

std::vector<std::string_view> metric_names() {
  std::vector<std::string_view> names;
  for (const MetricInfo& info : all_metrics()) names.push_back(info.name);
  return names;
}

// --metric, else bits per byte, which are comparable across tokenizers, else the first available.
Metric metric_from(const Arguments& arguments, const std::vector<Metric>& available) {
  if (arguments.given("metric")) {
    const Metric metric = *metric_named(arguments.text("metric"));
    check(std::ranges::count(available, metric) > 0, "no run has values of {}", arguments.text("metric"));
    return metric;
  }
  return std::ranges::count(available, Metric::val_bpb) > 0 ? Metric::val_bpb : available.front();
}

void write_picture(const Output& output, std::span<const RunData> runs, const std::vector<Metric>& available,
                   const Arguments& arguments, const PlotOptions& options, FileOps& ops) {
  const std::string kind = output.path.extension().string();
  std::string text;
  if (kind == ".svg") {
    text = chart_svg(overlay(runs, metric_from(arguments, available), options), {});
  } else if (arguments.given("metric")) {
    const std::vector<Metric> one = {metric_from(arguments, available)};
    text = plot_html(runs, one, options);
  } else {
    text = plot_html(runs, available, options);
  }
  make_folders(ops, folder_of(output.path));
  write_file(ops, output.path, text, output.existing);
}

std::string in_terminal(const Chart& chart) {
  Chart plain = chart;  // a terminal cannot show faint lines
  std::erase_if(plain.series, [](const ChartSeries& series) { return series.faint; });
  for (ChartSeries& series : plain.series) series.name = terminal_safe(series.name);
  return text_plot(plain, {.width = page_width(kPlainPlotWidth), .colour = wants_colour(STDOUT_FILENO)});
}

Json as_json(const Chart& chart, std::string_view metric, const std::filesystem::path& file) {
  Json curves = Json::array();
  for (const ChartSeries& series : chart.series) {
    if (series.faint) continue;
    Json points = Json::array();
    for (const CurvePoint& point : series.curve) points.push(Json::array({point.x, point.y}));
    curves.push(Json::object().set("run", series.name).set("points", points));
  }
  return Json::object()
      .set("file", file.empty() ? Json() : Json(file.string()))
      .set("metric", metric)
      .set("x", chart.x_label)
      .set("curves", curves);
}

// Returns an empty path if the report cannot be written; that does not make `plot` fail.
std::filesystem::path report_of(const RunData& run, const PlotOptions& options, FileOps& ops,
                                const Console& console) {
  try {
    return write_report(ops, run, {.smoothing = options.smoothing});
  } catch (const std::exception& error) {
    console.log().warning("cannot write the report: {}", error.what());
    return {};
  }
}

int run_plot(const Arguments& arguments, Console& console) {
  PosixFileOps ops;
  PlotOptions options{.x = *x_axis_named(arguments.text("x"))};
  if (arguments.given("smooth")) options.smoothing = arguments.number("smooth", {.least = 0, .most = 0.9999});
  Output output;
  if (arguments.given("output")) {
    output = output_from(arguments, ops);
    const std::string kind = output.path.extension().string();
    if (kind != ".html" && kind != ".svg")
      throw UsageError(
          fmt::format("-o expects a file that ends in .html or .svg, found {}", output.path.string()));
  }
  std::vector<RunData> runs;
  for (const std::string& run : arguments.list("RUN")) runs.push_back(read_run(run));
  const std::vector<Metric> available = metrics_of(runs);
  check(!available.empty(), "the runs have no metrics yet: no step was completed");
  const Metric metric = metric_from(arguments, available);
  const Chart chart = overlay(runs, metric, options);
  if (arguments.given("output"))
    write_picture(output, runs, available, arguments, options, ops);
  else if (!console.json())
    console.print(in_terminal(chart));
  if (!arguments.given("output") && !console.json() && runs.size() > 1)
    console.print_foreign("\n" + comparison_text(compare_runs(runs), page_width(0)));
  if (!arguments.given("output") && runs.size() == 1)
    output.path = report_of(runs.front(), options, ops, console);
  if (console.json()) {
    console.print_json(as_json(chart, info_of(metric).name, output.path));
    return 0;
  }
  if (!output.path.empty()) console.print(output.path.string() + "\n");
  return 0;
}

}  // namespace

Command plot_command() {
  return {
      .name = "plot",
      .summary = "plot one or more runs in the terminal, as SVG or HTML",
      .arguments = {{.name = "RUN", .help = "run folders", .count = Count::many}},
      .options =
          {{.name = "output",
            .letter = 'o',
            .value = "FILE",
            .help =
                "FILE.html or FILE.svg instead of the terminal; for one run, report.html is written as well"},
           {.name = "metric",
            .help = "metric to plot",
            .choices = metric_names(),
            .shown_default = "val_bpb, or loss; all in FILE.html"},
           {.name = "x",
            .initial = "steps",
            .help = "horizontal axis",
            .choices = {"steps", "tokens", "seconds"}},
           {.name = "smooth",
            .value = "F",
            .help = "smoothing of noisy curves, from 0 (none) to below 1",
            .shown_default = "by the number of points"},
           common::force(),
           common::json(),
           common::quiet()},
      .examples = {"thimble plot runs/a", "thimble plot runs/a runs/b -o both.html",
                   "thimble plot runs/* --metric loss --x tokens -o losses.svg"},
      .run = run_plot};
}

namespace {

int run_compare(const Arguments& arguments, Console& console) {
  std::vector<RunData> runs;
  for (const std::string& run : arguments.list("RUN")) runs.push_back(read_run(run));
  const Comparison comparison = compare_runs(runs);
  for (const std::string& warning : comparison.warnings) console.log().warning("{}", warning);
  if (console.json())
    console.print_json(comparison_json(comparison));
  else
    console.print_foreign(comparison_text(comparison, page_width(0)));
  return 0;
}

}  // namespace

Command compare_command() {
  return {.name = "compare",
          .summary = "compare runs: settings, results, means over seeds, and a t-test",
          .arguments = {{.name = "RUN",
                         .help = "run folders; runs that differ only in the seed form a group",
                         .count = Count::many}},
          .options = {common::json(), common::quiet()},
          .examples = {"thimble compare runs/a runs/b", "thimble compare runs/low-* runs/high-* --json"},
          .run = run_compare};
}

}  // namespace thimble
