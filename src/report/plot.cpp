#include "report/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "base/error.h"
#include "base/machine.h"
#include "base/table.h"
#include "report/chart.h"
#include "report/report.h"

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

namespace {

constexpr std::size_t kLabel = 8;          // columns left of the axis
constexpr std::size_t kLeastColumns = 12;  // of the plot itself
// Readable on black and on white: blue, red, green, magenta, cyan, yellow.
constexpr std::array kColours = {34, 31, 32, 35, 36, 33};

// The bit of each of a character's 2 x 4 dots, by column and row (Unicode, block "Braille Patterns").
constexpr std::array<std::array<unsigned, 4>, 2> kDots = {
    {{0x01, 0x02, 0x04, 0x40}, {0x08, 0x10, 0x20, 0x80}}};

std::string braille(unsigned dots) {
  const unsigned code = 0x2800 + dots;
  return {static_cast<char>(0xE0 | (code >> 12)), static_cast<char>(0x80 | ((code >> 6) & 0x3F)),
          static_cast<char>(0x80 | (code & 0x3F))};
}

char letter_of(std::size_t series) {
  return static_cast<char>('a' + series % 26);
}

std::string coloured(const std::string& text, std::size_t series, bool colour) {
  return colour ? fmt::format("\x1b[{}m{}\x1b[0m", kColours[series % kColours.size()], text) : text;
}

class Canvas {
 public:
  Canvas(std::size_t columns, std::size_t rows) : columns_(columns), rows_(rows), cells_(columns * rows) {}

  // A line between two places in dots, both inside.
  void line(double x0, double y0, double x1, double y1, std::size_t series) {
    const int steps = static_cast<int>(std::max({1.0, std::abs(x1 - x0), std::abs(y1 - y0)}) * 2);
    for (int i = 0; i <= steps; ++i) dot(x0 + (x1 - x0) * i / steps, y0 + (y1 - y0) * i / steps, series);
  }

  std::string cell(std::size_t column, std::size_t row, bool letters, bool colour) const {
    const Cell& cell = cells_[row * columns_ + column];
    if (cell.dots == 0) return " ";
    return letters ? std::string(1, letter_of(cell.series))
                   : coloured(braille(cell.dots), cell.series, colour);
  }
  double width() const { return static_cast<double>(2 * columns_ - 1); }
  double height() const { return static_cast<double>(4 * rows_ - 1); }

 private:
  struct Cell {
    unsigned dots = 0;
    std::size_t series = 0;  // the last one wins
  };

  void dot(double x, double y, std::size_t series) {
    const auto column = static_cast<std::size_t>(std::clamp(std::lround(x), 0L, std::lround(width())));
    const auto row = static_cast<std::size_t>(std::clamp(std::lround(y), 0L, std::lround(height())));
    Cell& cell = cells_[row / 4 * columns_ + column / 2];
    cell.dots |= kDots[column % 2][row % 4];
    cell.series = series;
  }

  std::size_t columns_, rows_;
  std::vector<Cell> cells_;
};

struct Drawn {
  Canvas canvas;
  Scale x, y;
};

Drawn drawn(const Chart& chart, std::size_t columns, std::size_t rows) {
  std::vector<double> xs, ys;
  for (const ChartSeries& series : chart.series)
    for (const CurvePoint& point : series.curve) xs.push_back(point.x), ys.push_back(point.y);
  Drawn result{Canvas(columns, rows), scale_around(xs, {.from_zero = true, .air = false}),
               scale_around(ys, {.logarithmic = chart.logarithmic, .from_zero = chart.from_zero})};
  const auto x = [&](double value) { return result.canvas.width() * result.x.place_of(value); };
  const auto y = [&](double value) { return result.canvas.height() * (1 - result.y.place_of(value)); };
  for (std::size_t s = 0; s < chart.series.size(); ++s) {
    const Curve& curve = chart.series[s].curve;
    for (std::size_t i = 0; i < curve.size(); ++i) {
      const CurvePoint &to = curve[i], &from = curve[i > 0 ? i - 1 : 0];
      result.canvas.line(x(from.x), y(from.y), x(to.x), y(to.y), s);
    }
  }
  return result;
}

// Label of a row, if a tick falls into it.
std::vector<std::string> row_labels(const Scale& y, std::size_t rows) {
  std::vector<std::string> labels(rows);
  const std::vector<double> ticks = y.ticks(std::max(2, static_cast<int>(rows) / 3));
  const std::vector<std::string> texts = tick_texts(ticks);
  for (std::size_t i = 0; i < ticks.size(); ++i) {
    const double row = static_cast<double>(rows - 1) * (1 - y.place_of(ticks[i]));
    labels[static_cast<std::size_t>(std::clamp(std::lround(row), 0L, static_cast<long>(rows) - 1))] =
        texts[i];
  }
  return labels;
}

// Labels of x where there is room for them.
std::string column_labels(const Scale& x, std::size_t columns) {
  std::string line(columns, ' ');
  const std::vector<double> ticks = x.ticks(std::max(2, static_cast<int>(columns) / 12));
  const std::vector<std::string> texts = tick_texts(ticks);
  std::size_t free = 0;
  for (std::size_t i = 0; i < ticks.size(); ++i) {
    auto column = static_cast<std::size_t>(static_cast<double>(columns - 1) * x.place_of(ticks[i]));
    column = std::min(column, columns - std::min(columns, texts[i].size()));
    if (column < free) continue;
    line.replace(column, texts[i].size(), texts[i]);
    free = column + texts[i].size() + 1;
  }
  return line;
}

}  // namespace

std::string text_plot(const Chart& chart, const TextPlotOptions& options) {
  const std::size_t columns = std::max(options.width, kLabel + 2 + kLeastColumns) - kLabel - 2;
  const std::size_t rows = std::max<std::size_t>(options.height, 4);
  const bool letters = chart.series.size() > 1 && !options.colour;
  const Drawn plot = drawn(chart, columns, rows);
  const std::vector<std::string> labels = row_labels(plot.y, rows);
  const std::string title = fmt::format("{}, over {}", chart.title, chart.x_label);
  std::string out = shortened(title, options.width > 4 ? options.width - 4 : 0) + "\n";
  for (std::size_t row = 0; row < rows; ++row) {
    std::string line = fmt::format("{:>{}} {}", labels[row], kLabel, labels[row].empty() ? "│" : "┤");
    for (std::size_t column = 0; column < columns; ++column)
      line += plot.canvas.cell(column, row, letters, options.colour);
    out += line.erase(line.find_last_not_of(' ') + 1) + "\n";
  }
  std::string below = fmt::format("{:>{}}  {}", "", kLabel, column_labels(plot.x, columns));
  out += below.erase(below.find_last_not_of(' ') + 1) + "\n";
  if (chart.series.size() < 2) return out;
  for (std::size_t s = 0; s < chart.series.size(); ++s) {
    const std::string mark = letters ? std::string(1, letter_of(s)) : coloured("⣿⣿", s, true);
    out += fmt::format("{} {}\n", mark, shortened(chart.series[s].name, options.width - 8));
  }
  return out;
}

}  // namespace thimble
