#include "report/chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/table.h"
#include "report/report.h"

namespace thimble {

namespace {

constexpr std::array kMetrics = {
    MetricInfo{Metric::loss, "loss", "training loss, nats per token", "nats per token"},
    MetricInfo{Metric::val_bpb, "val_bpb", "validation, bits per byte", "bits per byte", true},
    MetricInfo{Metric::val_loss, "val_loss", "validation loss, nats per token", "nats per token", true},
    MetricInfo{Metric::lr, "lr", "learning rate of the matrices", "learning rate"},
    MetricInfo{Metric::tokens_per_second, "tokens_per_second", "tokens per second", "tokens per second"},
    MetricInfo{Metric::grad_norm, "grad_norm", "gradient norm", "norm"},
};

constexpr std::array<std::string_view, 3> kAxes = {"steps", "tokens", "seconds"};

double x_of(const RunData& run, XAxis axis, std::int64_t step, double elapsed) {
  if (axis == XAxis::tokens) return run.tokens_at(step);
  return axis == XAxis::seconds ? elapsed : static_cast<double>(step);
}

double figure_of(const RunData& run, Metric metric, const StepFigures& figures) {
  switch (metric) {
    case Metric::lr:
      return run.config ? run.config->optimizer.rate(ParamGroup::matrix) * figures.multiplier : NAN;
    case Metric::tokens_per_second:
      return figures.seconds > 0 && run.config ? run.tokens_at(1) / figures.seconds : NAN;
    case Metric::grad_norm:
      return figures.grad_norm;
    default:
      return figures.loss;
  }
}

}  // namespace

std::span<const MetricInfo> all_metrics() {
  return kMetrics;
}

const MetricInfo& info_of(Metric metric) {
  return *std::ranges::find(kMetrics, metric, &MetricInfo::metric);
}

bool is_noisy(Metric metric) {
  return !info_of(metric).sparse && metric != Metric::lr;
}

std::optional<Metric> metric_named(std::string_view name) {
  const auto found = std::ranges::find(kMetrics, name, &MetricInfo::name);
  return found == kMetrics.end() ? std::nullopt : std::optional(found->metric);
}

std::string_view name_of(XAxis axis) {
  return kAxes[static_cast<std::size_t>(axis)];
}

std::optional<XAxis> x_axis_named(std::string_view name) {
  const auto found = std::ranges::find(kAxes, name);
  return found == kAxes.end() ? std::nullopt : std::optional(static_cast<XAxis>(found - kAxes.begin()));
}

Curve curve_of(const RunData& run, Metric metric, XAxis axis) {
  Curve curve;
  const auto add = [&](std::int64_t step, double elapsed, double y, std::int64_t steps = 1) {
    if (std::isfinite(y)) curve.push_back({x_of(run, axis, step, elapsed), y, steps});
  };
  if (info_of(metric).sparse)
    for (const ValidationPoint& point : run.validations)
      add(point.step, point.elapsed, metric == Metric::val_bpb ? point.bits_per_byte : point.loss);
  else
    for (const StepPoint& point : run.steps)
      add(point.step, point.elapsed, figure_of(run, metric, point.mean), point.steps);
  return curve;
}

Curve extremes_of(const RunData& run, Metric metric, XAxis axis) {
  if (info_of(metric).sparse) return curve_of(run, metric, axis);
  Curve curve;
  const auto add = [&](const StepPoint& point, const StepFigures& figures) {
    const double y = figure_of(run, metric, figures);
    if (std::isfinite(y)) curve.push_back({x_of(run, axis, point.step, point.elapsed), y});
  };
  for (const StepPoint& point : run.steps) {
    add(point, point.low);
    if (point.steps > 1) add(point, point.high);
  }
  return curve;
}

Curve smoothed(const Curve& curve, double factor) {
  check(factor >= 0 && factor < 1, "[curve] the smoothing factor must be in [0, 1), got {}", factor);
  constexpr double kNegligible = 1e-6, kReach = 16;
  std::vector<double> middles;  // of the points, in steps
  double steps = 0;
  for (const CurvePoint& point : curve) {
    middles.push_back(steps + static_cast<double>(point.steps) / 2);
    steps += static_cast<double>(point.steps);
  }
  Curve result = curve;
  for (std::size_t i = 0; i < curve.size(); ++i) {
    const double from_start = middles[i] - middles[0];
    const double own_factor = from_start > 0 ? std::min(factor, std::exp(-kReach / from_start)) : 0;
    double sum = 0, weights = 0;
    const auto add = [&](std::size_t j) {
      const double weight = std::pow(own_factor, std::abs(middles[i] - middles[j]));
      weights += weight * static_cast<double>(curve[j].steps);
      sum += weight * static_cast<double>(curve[j].steps) * curve[j].y;
      return weight > kNegligible;
    };
    for (std::size_t j = i + 1; j > 0 && add(j - 1);) --j;
    for (std::size_t j = i + 1; j < curve.size() && add(j);) ++j;
    result[i].y = sum / weights;
  }
  return result;
}

double suitable_smoothing(const Curve& curve) {
  constexpr double kShare = 60, kMost = 25;
  double steps = 0;
  for (const CurvePoint& point : curve) steps += static_cast<double>(point.steps);
  return 1 - 1 / std::clamp(steps / kShare, 1.0, kMost);
}

Curve thinned(const Curve& curve, std::size_t buckets) {
  if (curve.size() <= 2 * buckets || buckets < 3) return curve;
  Curve result = {curve.front()};
  const std::size_t inner = curve.size() - 2, count = buckets - 1;
  for (std::size_t b = 0; b < count; ++b) {
    const auto begin = curve.begin() + 1 + static_cast<std::ptrdiff_t>(b * inner / count);
    const auto end = curve.begin() + 1 + static_cast<std::ptrdiff_t>((b + 1) * inner / count);
    const auto [low, high] = std::minmax_element(begin, end, [](auto& p, auto& q) { return p.y < q.y; });
    result.push_back(low < high ? *low : *high);
    if (low != high) result.push_back(low < high ? *high : *low);
  }
  result.push_back(curve.back());
  return result;
}

namespace {

constexpr int kStretch = 1000;    // viewBox width of the nested <svg>
constexpr int kLabelsBelow = 40;  // pixels for the x labels and the name of the axis
constexpr int kLabelsLeft = 62;   // and for those of the y axis
constexpr int kPixelsPerTick = 44;
constexpr std::array<std::string_view, kChartDashes> kDashes = {"", "6 4", "2 3", "9 3 2 3"};

struct Axes {
  Scale x, y;
};

Axes axes_of(const Chart& chart) {
  std::vector<double> xs, ys;
  for (const ChartSeries& series : chart.series)
    for (const CurvePoint& point : series.curve) {
      xs.push_back(point.x);
      ys.push_back(point.y);
    }
  return {scale_around(xs, {.from_zero = true, .margin = false}),
          scale_around(ys, {.logarithmic = chart.logarithmic, .from_zero = chart.from_zero})};
}

std::string dash_attribute(int style) {
  const std::string_view dash = kDashes[static_cast<std::size_t>(style / kChartColours % kChartDashes)];
  return dash.empty() ? "" : fmt::format(" stroke-dasharray=\"{}\"", dash);
}

enum class Values { with, without };  // data-x and data-y attributes, for the page's script

std::string path_of(const ChartSeries& series, const Axes& axes, int height, Values values) {
  std::string line, dots, xs, ys;
  for (const CurvePoint& point : series.curve) {
    const std::string place = fmt::format("{:.1f} {:.1f}", kStretch * axes.x.place_of(point.x),
                                          height * (1 - axes.y.place_of(point.y)));
    line += (line.empty() ? "M" : "L") + place;
    if (series.dots) dots += "M" + place + "h0";
    xs += fmt::format("{}{:.7g}", xs.empty() ? "" : ",", point.x);
    ys += fmt::format("{}{:.5g}", ys.empty() ? "" : ",", point.y);
  }
  const std::string style = fmt::format("s{}", series.style % kChartColours);
  std::string out = fmt::format("<path class=\"curve {}{}\"{} d=\"{}\"", style, series.faint ? " faint" : "",
                                dash_attribute(series.style), line);
  if (values == Values::with)
    out += fmt::format(" data-name=\"{}\" data-x=\"{}\" data-y=\"{}\"", escaped(series.name), xs, ys);
  out += "/>\n";
  if (!dots.empty()) out += fmt::format("<path class=\"dots {}\" d=\"{}\"/>\n", style, dots);
  return out;
}

std::string x_labels(const Axes& axes, int height, std::string_view name) {
  const std::vector<double> ticks = axes.x.ticks(5);
  const std::vector<std::string> texts = tick_texts(ticks);
  std::string out;
  for (std::size_t i = 0; i < ticks.size(); ++i) {
    const double percent = 100 * axes.x.place_of(ticks[i]);
    // Keep labels at the edges inside the chart.
    const std::string_view anchor = percent < 4 ? "start" : percent > 96 ? "end" : "middle";
    out += fmt::format("<line class=\"grid\" x1=\"{0:.2f}%\" x2=\"{0:.2f}%\" y1=\"0\" y2=\"{1}\"/>", percent,
                       height);
    out += fmt::format("<text x=\"{:.2f}%\" y=\"{}\" text-anchor=\"{}\">{}</text>\n", percent, height + 16,
                       anchor, texts[i]);
  }
  return out + fmt::format("<text x=\"50%\" y=\"{}\" text-anchor=\"middle\">{}</text>\n", height + 34,
                           escaped(name));
}

std::string y_grid(const std::vector<double>& ticks, const Axes& axes, int height) {
  std::string out;
  for (const double tick : ticks)
    out += fmt::format("<line class=\"grid\" x1=\"0\" x2=\"100%\" y1=\"{0:.1f}\" y2=\"{0:.1f}\"/>",
                       height * (1 - axes.y.place_of(tick)));
  return out + "\n";
}

std::string y_labels(const std::vector<double>& ticks, const Axes& axes, int height, std::string name) {
  const std::vector<std::string> texts = tick_texts(ticks);
  if (axes.y.logarithmic) name += name.empty() ? "log scale" : ", log scale";
  std::string out =
      fmt::format("<text transform=\"rotate(-90)\" x=\"{}\" y=\"12\" text-anchor=\"middle\">{}</text>\n",
                  -height / 2, escaped(name));
  for (std::size_t i = 0; i < ticks.size(); ++i)
    out += fmt::format("<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n", kLabelsLeft - 8,
                       height * (1 - axes.y.place_of(ticks[i])) + 4, texts[i]);
  return out;
}

std::vector<double> y_ticks(const Axes& axes, int height) {
  return axes.y.ticks(std::max(2, height / kPixelsPerTick + 1));
}

// Grid, x labels and curves: everything to the right of the y labels.
std::string area(const Chart& chart, const Axes& axes, int height, Values values) {
  std::string out = y_grid(y_ticks(axes, height), axes, height) + x_labels(axes, height, chart.x_label);
  out += fmt::format(
      "<svg width=\"100%\" height=\"{0}\" viewBox=\"0 0 {1} {0}\" preserveAspectRatio=\"none\" "
      "overflow=\"visible\">\n",
      height, kStretch);
  for (const ChartSeries& series : chart.series)
    if (!series.curve.empty()) out += path_of(series, axes, height, values);
  return out + "</svg>\n";
}

std::string swatch(const ChartSeries& series) {
  return fmt::format(
      "<svg class=\"swatch\" width=\"26\" height=\"10\" aria-hidden=\"true\"><path class=\"curve s{}{}\"{} "
      "d=\"M1 5H25\"/></svg>",
      series.style % kChartColours, series.faint ? " faint" : "", dash_attribute(series.style));
}

std::string legend_html(const Chart& chart) {
  std::string out = "<ul class=\"legend\">";
  for (const ChartSeries& series : chart.series)
    out += fmt::format("<li>{}<span>{}</span></li>", swatch(series), escaped(series.name));
  return out + "</ul>\n";
}

// The text for screen readers.
std::string description(const Chart& chart) {
  std::string text = chart.title;
  for (const ChartSeries& series : chart.series)
    if (!series.curve.empty() && !series.faint)
      text += fmt::format("; {}: from {:.4g} to {:.4g}", series.name, series.curve.front().y,
                          series.curve.back().y);
  return text;
}

// A standalone SVG file defines its own colors, which are those of web/page.html.
constexpr std::string_view kSvgStyle = R"(
  svg { --paper: #fbfaf8; --ink: #23211e; --muted: #67625b; --line: #e2ded6;
        --s0: #0b62a8; --s1: #d9540b; --s2: #00a567; --s3: #6e1d47; --s4: #4c3f13; --s5: #928ba1; }
  @media (prefers-color-scheme: dark) {
    svg { --paper: #171716; --ink: #e9e6e0; --muted: #a8a39a; --line: #383632;
          --s0: #6db6f2; --s1: #ff9145; --s2: #377f56; --s3: #9a5c98; --s4: #fedb14; --s5: #adc0c0; }
  }
  .paper { fill: var(--paper); }
  text { font: 12px system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif; fill: var(--muted); }
  .title { font-size: 15px; font-weight: 600; fill: var(--ink); }
  .name { fill: var(--ink); }
  .grid { stroke: var(--line); }
  .curve { fill: none; stroke-width: 1.8; stroke-linejoin: round; vector-effect: non-scaling-stroke; }
  .faint { stroke-width: 1; opacity: .5; }
  .dots { fill: none; stroke-width: 5; stroke-linecap: round; vector-effect: non-scaling-stroke; }
  .s0 { stroke: var(--s0); } .s1 { stroke: var(--s1); } .s2 { stroke: var(--s2); }
  .s3 { stroke: var(--s3); } .s4 { stroke: var(--s4); } .s5 { stroke: var(--s5); }
)";

struct Legend {
  std::string svg;
  int height = 0;
};

// Entries from left to right, wrapped onto further lines. Text widths are estimated from the number
// of characters.
Legend legend_svg(const Chart& chart, int width) {
  constexpr int kLine = 20, kCharacter = 7, kSwatch = 34, kGap = 18;
  Legend legend;
  int x = kLabelsLeft, y = 0;
  for (const ChartSeries& series : chart.series) {
    const int needed = kSwatch + kCharacter * static_cast<int>(display_width(series.name));
    if (x > kLabelsLeft && x + needed > width) x = kLabelsLeft, y += kLine;
    legend.svg +=
        fmt::format("<svg x=\"{}\" y=\"{}\" width=\"26\" height=\"10\">{}</svg>", x, y,
                    fmt::format("<path class=\"curve s{}{}\"{} d=\"M1 5H25\"/>", series.style % kChartColours,
                                series.faint ? " faint" : "", dash_attribute(series.style)));
    legend.svg += fmt::format("<text class=\"name\" x=\"{}\" y=\"{}\">{}</text>\n", x + kSwatch, y + 9,
                              escaped(series.name));
    x += needed + kGap;
  }
  legend.height = y + kLine;
  return legend;
}

}  // namespace

std::string chart_html(const Chart& chart, int height) {
  const Axes axes = axes_of(chart);
  const int outer = height + kLabelsBelow;
  std::string out = fmt::format("<figure class=\"chart\"><figcaption><span>{}</span>", escaped(chart.title));
  if (!chart.latest.empty()) out += fmt::format(" <b>{}</b>", escaped(chart.latest));
  out += "</figcaption>\n";
  if (chart.legend) out += legend_html(chart);
  out += fmt::format(
      "<div class=\"plot\"><svg class=\"labels\" width=\"{}\" height=\"{}\" aria-hidden=\"true\">{}</svg>\n",
      kLabelsLeft, outer, y_labels(y_ticks(axes, height), axes, height, chart.y_label));
  out += fmt::format(
      "<svg class=\"area\" height=\"{}\" role=\"img\" tabindex=\"0\" aria-label=\"{}\" data-low=\"{:.7g}\" "
      "data-high=\"{:.7g}\" data-height=\"{}\" data-unit=\"{}\">\n{}<line class=\"cursor\" y1=\"0\" "
      "y2=\"{}\" "
      "visibility=\"hidden\"/></svg></div></figure>\n",
      outer, escaped(description(chart)), axes.x.low, axes.x.high, height, escaped(chart.x_label),
      area(chart, axes, height, Values::with), height);
  return out;
}

std::string chart_svg(const Chart& chart, SvgSize size) {
  constexpr int kTitle = 38, kRight = 22, kBottom = 8;
  const Axes axes = axes_of(chart);
  const int width = size.width - kLabelsLeft - kRight;
  const Legend legend = chart.legend ? legend_svg(chart, size.width - kRight) : Legend{};
  const int top = kTitle + legend.height, height = std::max(60, size.height - top - kLabelsBelow - kBottom);
  const int full = top + height + kLabelsBelow + kBottom;
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
      "role=\"img\" "
      "aria-label=\"{2}\">\n<style>{3}</style>\n<rect class=\"paper\" width=\"100%\" height=\"100%\"/>\n",
      size.width, full, escaped(description(chart)), kSvgStyle);
  out +=
      fmt::format("<text class=\"title\" x=\"{}\" y=\"24\">{}</text>\n", kLabelsLeft, escaped(chart.title));
  if (!legend.svg.empty())
    out += fmt::format("<g transform=\"translate(0 {})\">\n{}</g>\n", kTitle, legend.svg);
  out += fmt::format("<g transform=\"translate(0 {})\">\n{}</g>\n", top,
                     y_labels(y_ticks(axes, height), axes, height, chart.y_label));
  out +=
      fmt::format("<svg x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" overflow=\"visible\">\n{}</svg>\n",
                  kLabelsLeft, top, width, height + kLabelsBelow, area(chart, axes, height, Values::without));
  return out + "</svg>\n";
}

namespace {

Scale scale_of(const DotPlot& plot) {
  std::vector<double> values = {plot.line};
  for (const DotRow& row : plot.rows) {
    values.insert(values.end(), {row.mean, row.low, row.high});
    values.insert(values.end(), row.values.begin(), row.values.end());
    values.insert(values.end(), row.second.begin(), row.second.end());
  }
  return scale_around(values, {});
}

}  // namespace

std::string dot_plot_svg(const DotPlot& plot) {
  constexpr int kWidth = 760, kRow = 20, kTop = 60, kRight = 24, kBottom = 34, kCharacter = 7, kTicks = 7;
  std::size_t longest = 0;
  for (const DotRow& row : plot.rows) longest = std::max(longest, display_width(row.name));
  const int left = std::clamp(kCharacter * static_cast<int>(longest) + 24, 90, kWidth / 2);
  const int bottom = kTop + kRow * static_cast<int>(plot.rows.size());
  const Scale scale = scale_of(plot);
  const auto x = [&](double value) { return left + scale.place_of(value) * (kWidth - left - kRight); };
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
      "role=\"img\" "
      "aria-label=\"{2}\">\n<style>{3}  .d0 {{ fill: var(--s0); }} .d1 {{ fill: var(--s1); }} .hollow {{ "
      "fill: "
      "var(--paper); }}\n</style>\n<rect class=\"paper\" width=\"100%\" height=\"100%\"/>\n<text "
      "class=\"title\" "
      "x=\"{4}\" y=\"24\">{2}</text>\n",
      kWidth, bottom + kBottom, escaped(plot.title), kSvgStyle, left);
  int at = left;
  const auto legend = [&](const std::string& mark, const std::string& name) {
    if (name.empty()) return;
    out +=
        fmt::format("<svg x=\"{}\" y=\"36\" overflow=\"visible\">{}</svg><text x=\"{}\" y=\"46\">{}</text>\n",
                    at, mark, at + 14, escaped(name));
    at += 32 + kCharacter * static_cast<int>(display_width(name));
  };
  legend("<circle class=\"s0 d0\" cx=\"5\" cy=\"6\" r=\"3\"/>", plot.first_name);
  legend("<circle class=\"s1 d1\" cx=\"5\" cy=\"6\" r=\"3\"/>", plot.second_name);
  legend(
      "<line class=\"grid\" x1=\"5\" x2=\"5\" y1=\"0\" y2=\"12\" style=\"stroke:var(--muted)\" "
      "stroke-dasharray=\"3 3\"/>",
      plot.line_name);
  const std::vector<double> ticks = scale.ticks(kTicks);
  const std::vector<std::string> texts = tick_texts(ticks);
  for (std::size_t i = 0; i < ticks.size(); ++i)
    out += fmt::format(
        "<line class=\"grid\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\"/><text x=\"{0:.1f}\" "
        "y=\"{3}\" "
        "text-anchor=\"middle\">{4}</text>\n",
        x(ticks[i]), kTop, bottom, bottom + 18, texts[i]);
  if (std::isfinite(plot.line))
    out += fmt::format(
        "<line class=\"grid\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\" "
        "style=\"stroke:var(--muted)\" "
        "stroke-dasharray=\"3 3\"/>\n",
        x(plot.line), kTop, bottom);
  for (std::size_t i = 0; i < plot.rows.size(); ++i) {
    const DotRow& row = plot.rows[i];
    const double y = kTop + kRow * (static_cast<double>(i) + 0.5);
    out += fmt::format("<text class=\"name\" x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>", left - 10,
                       y + 4, escaped(row.name));
    if (std::isfinite(row.low) && std::isfinite(row.high))
      out += fmt::format("<line class=\"s0\" x1=\"{0:.1f}\" x2=\"{1:.1f}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\"/>",
                         x(row.low), x(row.high), y);
    if (std::isfinite(row.mean))
      out += fmt::format(
          "<line class=\"s0\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.1f}\" y2=\"{2:.1f}\" "
          "stroke-width=\"2\"/>",
          x(row.mean), y - 7, y + 7);
    const auto dots = [&](const std::vector<double>& values, std::string_view style) {
      for (const double value : values)
        if (std::isfinite(value))
          out +=
              fmt::format("<circle class=\"{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\"/>", style, x(value), y);
    };
    dots(row.second, row.hollow ? "s1 hollow" : "s1 d1");
    dots(row.values, "s0 d0");
    out += "\n";
  }
  return out + "</svg>\n";
}

std::string dot_plot_text(const DotPlot& plot, std::size_t width) {
  constexpr std::size_t kLeast = 20, kTicks = 5;
  std::size_t names = 0;
  for (const DotRow& row : plot.rows) names = std::max(names, display_width(row.name));
  const std::size_t columns = std::max(kLeast, width - std::min(width, names + 2));
  const Scale scale = scale_of(plot);
  const auto column = [&](double value) {
    const auto last = static_cast<double>(columns - 1);
    return static_cast<std::size_t>(std::clamp(std::round(scale.place_of(value) * last), 0.0, last));
  };
  std::string out = plot.title + "\n";
  for (const DotRow& row : plot.rows) {
    std::string line(columns, ' ');
    if (std::isfinite(row.low) && std::isfinite(row.high))
      for (std::size_t i = column(row.low); i <= column(row.high); ++i) line[i] = '-';
    if (std::isfinite(plot.line)) line[column(plot.line)] = ':';
    for (const double value : row.values)
      if (std::isfinite(value)) line[column(value)] = 'o';
    if (std::isfinite(row.mean)) line[column(row.mean)] = '|';
    line.erase(line.find_last_not_of(' ') + 1);
    out += row.name + std::string(names - display_width(row.name) + 2, ' ') + line + "\n";
  }
  std::string axis(names + 2 + columns, ' ');
  const std::vector<double> ticks = scale.ticks(kTicks);
  const std::vector<std::string> texts = tick_texts(ticks);
  for (std::size_t i = 0, free = 0; i < ticks.size(); ++i) {
    const std::size_t middle = names + 2 + column(ticks[i]),
                      begin = middle - std::min(middle, texts[i].size() / 2);
    if (begin < free || begin + texts[i].size() > axis.size()) continue;
    axis.replace(begin, texts[i].size(), texts[i]);
    free = begin + texts[i].size() + 1;
  }
  axis.erase(axis.find_last_not_of(' ') + 1);
  return out + axis + "\n";
}

namespace {

constexpr double kLogFromRatio = 3;
constexpr double kMargin = 0.04;
constexpr double kEqual = 1e-9;  // relative; smaller differences are treated as rounding
constexpr double kSmallest = std::numeric_limits<double>::min(),
                 kLargest = std::numeric_limits<double>::max();

// The smallest of 1, 2, 5, 10, ... that is at least `rough`.
double round_step(double rough) {
  const double power = std::pow(10, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (factor * power >= rough * (1 - 1e-9)) return factor * power;
  return 10 * power;
}

std::vector<double> linear_ticks(double low, double high, int most) {
  const double step = round_step(high / most - low / most);
  std::vector<double> ticks;
  if (!std::isnormal(step)) return ticks;
  const double first = std::ceil(low / step - 1e-9);
  // A counted loop, because adding a step below an ulp of `low` makes no progress.
  for (int i = 0; i <= most; ++i) {
    const double tick = (first + i) * step;
    if (!(tick <= high + 1e-9 * step) || (!ticks.empty() && tick <= ticks.back())) break;
    ticks.push_back(tick);
  }
  return ticks;
}

// Powers of ten, and as many values between them as fit.
std::vector<double> log_ticks(double low, double high, int most) {
  static const std::array<std::vector<double>, 4> kBetween = {{{1}, {1, 3}, {1, 2, 5}, {1, 1.5, 2, 3, 5, 7}}};
  std::vector<double> best;
  if (!(low >= kSmallest && high <= kLargest)) return best;
  const int first = static_cast<int>(std::floor(std::log10(low)));
  const int last = static_cast<int>(std::floor(std::log10(high)));
  for (const std::vector<double>& factors : kBetween) {
    std::vector<double> ticks;
    for (int power = first; power <= last; ++power)
      for (const double factor : factors)
        if (const double tick = factor * std::pow(10, power); tick >= low && tick <= high)
          ticks.push_back(tick);
    if (static_cast<int>(ticks.size()) <= most && ticks.size() > best.size()) best = ticks;
  }
  return best.size() >= 3 ? best : linear_ticks(low, high, most);
}

}  // namespace

double Scale::place_of(double value) const {
  // Halving the values and subtracting logarithms avoid overflow of the difference and the ratio.
  if (!logarithmic) return (value / 2 - low / 2) / (high / 2 - low / 2);
  return (std::log(value) - std::log(low)) / (std::log(high) - std::log(low));
}

std::vector<double> Scale::ticks(int most) const {
  return logarithmic ? log_ticks(low, high, most) : linear_ticks(low, high, most);
}

Scale scale_around(const std::vector<double>& values, ScaleOptions options) {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  for (const double value : values)
    if (std::isfinite(value)) low = std::min(low, value), high = std::max(high, value);
  if (low > high) return {};
  if (options.logarithmic && low >= kSmallest && high / kLogFromRatio > low) {
    const double margin = options.margin ? std::pow(high, kMargin) / std::pow(low, kMargin) : 1;
    return {std::max(low / margin, kSmallest), std::min(high * margin, kLargest), true};
  }
  if (options.from_zero) low = std::min(low, 0.0), high = std::max(high, 0.0);
  const double largest = std::max(std::abs(low), std::abs(high));
  if (high - low <= kEqual * largest) {
    const double room = largest == 0 ? 1 : std::max(largest * 0.1, kSmallest);
    return {low == 0 || options.from_zero ? low : std::max(low - room, -kLargest),
            std::min(high + room, kLargest)};
  }
  const double margin = options.margin ? kMargin * high - kMargin * low : 0;
  return {options.from_zero && low == 0 ? 0 : std::max(low - margin, -kLargest),
          options.from_zero && high == 0 ? 0 : std::min(high + margin, kLargest)};
}

std::string tick_text(double value, double step) {
  static constexpr std::array<const char*, 5> kUnits = {"", "k", "M", "G", "T"};
  if (std::abs(value) < 1e-12 * step || value == 0) return "0";
  std::size_t unit = 0;
  while (unit + 1 < kUnits.size() && std::abs(value) >= 1000 * (1 - 1e-9))
    value /= 1000, step /= 1000, ++unit;
  if (unit == 0 && std::abs(value) < 1e-4) return fmt::format("{:.0e}", value);
  const int digits = std::clamp(static_cast<int>(std::ceil(-std::log10(step) - 1e-9)), 0, 6);
  std::string text = fmt::format("{:.{}f}", value, digits);
  if (text.find('.') != text.npos) {
    text.erase(text.find_last_not_of('0') + 1);
    if (text.ends_with('.')) text.pop_back();
  }
  return text + kUnits[unit];
}

std::vector<std::string> tick_texts(const std::vector<double>& ticks) {
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < ticks.size(); ++i) {
    double step = std::abs(ticks[i]);
    if (i > 0) step = std::min(step, ticks[i] - ticks[i - 1]);
    if (i + 1 < ticks.size()) step = std::min(step == 0 ? ticks[i + 1] : step, ticks[i + 1] - ticks[i]);
    texts.push_back(tick_text(ticks[i], step == 0 ? 1 : step));
  }
  return texts;
}

}  // namespace thimble
