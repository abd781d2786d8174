#include "report/chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/table.h"
#include "report/html.h"
#include "report/scale.h"

namespace thimble {

namespace {

constexpr int kStretch = 1000;    // the inner picture's own width
constexpr int kLabelsBelow = 22;  // pixels for the labels of x
constexpr int kLabelsLeft = 46;   // and of y
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
  return {scale_around(xs, {.from_zero = true, .air = false}),
          scale_around(ys, {.logarithmic = chart.logarithmic, .from_zero = chart.from_zero})};
}

std::string dash_attribute(int style) {
  const std::string_view dash = kDashes[static_cast<std::size_t>(style / kChartColours % kChartDashes)];
  return dash.empty() ? "" : fmt::format(" stroke-dasharray=\"{}\"", dash);
}

enum class Values { with, without };  // for a script to show

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

std::string x_labels(const Axes& axes, int height) {
  const std::vector<double> ticks = axes.x.ticks(5);
  const std::vector<std::string> texts = tick_texts(ticks);
  std::string out;
  for (std::size_t i = 0; i < ticks.size(); ++i) {
    const double percent = 100 * axes.x.place_of(ticks[i]);
    // Labels at the edges stay inside.
    const std::string_view anchor = percent < 4 ? "start" : percent > 96 ? "end" : "middle";
    out += fmt::format("<line class=\"grid\" x1=\"{0:.2f}%\" x2=\"{0:.2f}%\" y1=\"0\" y2=\"{1}\"/>", percent,
                       height);
    out += fmt::format("<text x=\"{:.2f}%\" y=\"{}\" text-anchor=\"{}\">{}</text>\n", percent, height + 16,
                       anchor, texts[i]);
  }
  return out;
}

std::string y_grid(const std::vector<double>& ticks, const Axes& axes, int height) {
  std::string out;
  for (const double tick : ticks)
    out += fmt::format("<line class=\"grid\" x1=\"0\" x2=\"100%\" y1=\"{0:.1f}\" y2=\"{0:.1f}\"/>",
                       height * (1 - axes.y.place_of(tick)));
  return out + "\n";
}

std::string y_labels(const std::vector<double>& ticks, const Axes& axes, int height) {
  const std::vector<std::string> texts = tick_texts(ticks);
  std::string out;
  for (std::size_t i = 0; i < ticks.size(); ++i)
    out += fmt::format("<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n", kLabelsLeft - 8,
                       height * (1 - axes.y.place_of(ticks[i])) + 4, texts[i]);
  return out;
}

std::vector<double> y_ticks(const Axes& axes, int height) {
  return axes.y.ticks(std::max(2, height / kPixelsPerTick + 1));
}

// Grid, labels of x, curves: everything right of the labels of y.
std::string area(const Chart& chart, const Axes& axes, int height, Values values) {
  std::string out = y_grid(y_ticks(axes, height), axes, height) + x_labels(axes, height);
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

// What somebody hears who cannot see the picture.
std::string description(const Chart& chart) {
  std::string text = chart.title;
  for (const ChartSeries& series : chart.series)
    if (!series.curve.empty() && !series.faint)
      text += fmt::format("; {}: from {:.4g} to {:.4g}", series.name, series.curve.front().y,
                          series.curve.back().y);
  return text;
}

// Without the page around it a picture brings its own colours: those of web/page.html.
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

// From left to right, on as many lines as it takes; widths are guessed from the number of characters.
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
  if (!chart.now.empty()) out += fmt::format(" <b>{}</b>", escaped(chart.now));
  out += "</figcaption>\n";
  if (chart.legend) out += legend_html(chart);
  out += fmt::format(
      "<div class=\"plot\"><svg class=\"labels\" width=\"{}\" height=\"{}\" aria-hidden=\"true\">{}</svg>\n",
      kLabelsLeft, outer, y_labels(y_ticks(axes, height), axes, height));
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
  constexpr int kTitle = 38, kRight = 22, kBottom = 30;
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
                     y_labels(y_ticks(axes, height), axes, height));
  out +=
      fmt::format("<svg x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" overflow=\"visible\">\n{}</svg>\n",
                  kLabelsLeft, top, width, height + kLabelsBelow, area(chart, axes, height, Values::without));
  out += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n</svg>\n",
                     kLabelsLeft + width / 2, full - 10, escaped(chart.x_label));
  return out;
}

}  // namespace thimble
