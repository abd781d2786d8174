#include "report/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/version.h"
#include "report/html.h"
#include "report/page.h"

namespace thimble {

namespace {

constexpr std::size_t kPlotBuckets = 240;
constexpr int kAlone = 380, kOneOfMany = 220;  // pixels high

// The last `parts` parts of a path.
std::string tail_of(const std::filesystem::path& path, int parts) {
  std::filesystem::path tail = path.filename(), above = path.parent_path();
  for (int i = 1; i < parts && above.has_filename(); ++i, above = above.parent_path())
    tail = above.filename() / tail;
  return tail.string();
}

}  // namespace

std::vector<std::string> run_names(std::span<const RunData> runs) {
  constexpr int kMostParts = 8;
  std::vector<std::string> names;
  for (int parts = 1; parts <= kMostParts; ++parts) {
    names.clear();
    for (const RunData& run : runs) names.push_back(tail_of(run.folder, parts));
    if (std::set<std::string>(names.begin(), names.end()).size() == names.size()) break;
  }
  return names;
}

Chart overlay(std::span<const RunData> runs, Metric metric, const PlotOptions& options) {
  check(runs.size() <= kMostPlottedRuns, "{} runs in one picture, at most {} can be told apart", runs.size(),
        kMostPlottedRuns);
  const MetricInfo& info = info_of(metric);
  const std::vector<std::string> names = run_names(runs);
  Chart chart{.title = std::string(info.title), .x_label = std::string(name_of(options.x))};
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const Curve raw = curve_of(runs[i], metric, options.x);
    if (raw.empty()) continue;
    const double factor = is_noisy(metric) ? options.smoothing.value_or(suitable_smoothing(raw)) : 0;
    if (factor > 0 && runs.size() == 1)
      chart.series.push_back({.name = "each step",
                              .curve = thinned(extremes_of(runs[i], metric, options.x), kPlotBuckets),
                              .faint = true});
    chart.series.push_back({.name = names[i],
                            .curve = thinned(smoothed(raw, factor), kPlotBuckets),
                            .style = static_cast<int>(i),
                            .dots = info.sparse});
  }
  chart.logarithmic = info.sparse || metric == Metric::loss || metric == Metric::grad_norm;
  chart.from_zero = metric == Metric::lr || metric == Metric::tokens_per_second;
  chart.legend = chart.series.size() > 1;
  return chart;
}

std::vector<Metric> metrics_of(std::span<const RunData> runs) {
  std::vector<Metric> metrics;
  for (const MetricInfo& info : all_metrics())
    if (std::ranges::any_of(
            runs, [&](const RunData& run) { return !curve_of(run, info.metric, XAxis::steps).empty(); }))
      metrics.push_back(info.metric);
  return metrics;
}

std::string plot_html(std::span<const RunData> runs, std::span<const Metric> metrics,
                      const PlotOptions& options) {
  std::string charts;
  for (const Metric metric : metrics)
    charts += chart_html(overlay(runs, metric, options), metrics.size() == 1 ? kAlone : kOneOfMany);
  const std::string title = runs.size() == 1 ? run_names(runs).front() : fmt::format("{} runs", runs.size());
  return page_html(
      {.title = title + " - thimble",
       .sections = {{"head", fmt::format("<div class=\"title\"><h1>{}</h1></div>", escaped(title))},
                    {"curves", fmt::format("<div class=\"charts{}\">\n{}</div>\n",
                                           metrics.size() == 1 ? " alone" : "", charts)},
                    {"foot", fmt::format("<footer>Made by thimble {}.</footer>", version())}}});
}

}  // namespace thimble
