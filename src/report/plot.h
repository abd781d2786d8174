// Several runs in one picture.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "report/chart.h"
#include "report/run_data.h"

namespace thimble {

inline constexpr std::size_t kMostPlottedRuns = kChartColours * kChartDashes;

struct PlotOptions {
  XAxis x = XAxis::steps;
  std::optional<double> smoothing = {};  // of what there is one of a step; nothing: what suits each curve
};

// Names that tell the runs apart: of their folders, with as much of what is above them as it takes.
std::vector<std::string> run_names(std::span<const RunData> runs);

// A curve for each run that has the figure; of a single run also what was smoothed, in the background.
Chart overlay(std::span<const RunData> runs, Metric metric, const PlotOptions& options);

// The figures that at least one run has, in the order of all_metrics().
std::vector<Metric> metrics_of(std::span<const RunData> runs);

// A page with a chart for each of the metrics.
std::string plot_html(std::span<const RunData> runs, std::span<const Metric> metrics,
                      const PlotOptions& options);

// Curves in a terminal: braille dots, eight to a character. Where several curves cannot be told apart by colour they
// are drawn as letters.
struct TextPlotOptions {
  std::size_t width = 80, height = 14;  // characters; no line is wider, if 24 are given at least
  bool colour = false;                  // escape sequences may be used
};

// Title, the plot with its axes, and a legend where there is more than one curve. Names are shown as they are: foreign
// ones are the caller's to clean.
std::string text_plot(const Chart& chart, const TextPlotOptions& options);

}  // namespace thimble
