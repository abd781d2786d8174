// Plots of one or several runs.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "report/chart.h"
#include "report/run_data.h"

namespace thimble {

inline constexpr std::size_t kMaxPlottedRuns = kChartColours * kChartDashes;

struct PlotOptions {
  XAxis x = XAxis::steps;
  std::optional<double> smoothing = {};  // for per-step metrics; nullopt: automatic per curve
};

// Unique names for the runs: the folder name, with as many parent folders as needed.
std::vector<std::string> run_names(std::span<const RunData> runs);

// One curve per run that has the metric. For a single run, also the unsmoothed curve in the
// background.
Chart overlay(std::span<const RunData> runs, Metric metric, const PlotOptions& options);

// The metrics that at least one run has, in the order of all_metrics().
std::vector<Metric> metrics_of(std::span<const RunData> runs);

// A page with one chart per metric. For several runs, also their final values and the settings that
// differ.
std::string plot_html(std::span<const RunData> runs, std::span<const Metric> metrics,
                      const PlotOptions& options);

// Plots in a terminal use braille characters, eight dots each. Without color, several curves are
// drawn with letters instead.
struct TextPlotOptions {
  std::size_t width = 80, height = 14;  // characters; lines are not wider if width >= 24
  bool colour = false;                  // escape sequences may be used
};

// Title, plot with axes, and a legend if there is more than one curve. Names are printed unchanged;
// the caller must sanitize untrusted ones.
std::string text_plot(const Chart& chart, const TextPlotOptions& options);

}  // namespace thimble
