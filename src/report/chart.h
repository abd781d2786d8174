// Draws charts as SVG: curves over a grid with labeled axes.
//
// There are two outputs. In both, x positions are percentages and the curves are in a nested <svg>
// that is stretched to the available width, so that text and line widths keep their size when the
// page is resized.
//
//   chart_html   a <figure> with title, legend and the values that web/page.html's script shows
//   chart_svg    a standalone file that follows the viewer's light or dark color scheme
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "report/run_data.h"

namespace thimble {

// Curves of a run: a metric over steps, tokens or seconds, smoothed and thinned for drawing.
enum class Metric { loss, val_loss, val_bpb, lr, tokens_per_second, grad_norm };
enum class XAxis { steps, tokens, seconds };

struct MetricInfo {
  Metric metric;
  std::string_view name;   // as used on the command line: "val_bpb"
  std::string_view title;  // shown above the chart: "validation, bits per byte"
  std::string_view unit;   // shown beside the vertical axis: "bits per byte"
  bool sparse = false;     // few points, not one per step; never smoothed, drawn with dots
};
std::span<const MetricInfo> all_metrics();
const MetricInfo& info_of(Metric metric);
bool is_noisy(Metric metric);  // worth smoothing: loss, speed, gradient norm
std::optional<Metric> metric_named(std::string_view name);

std::string_view name_of(XAxis axis);
std::optional<XAxis> x_axis_named(std::string_view name);

struct CurvePoint {
  double x = 0, y = 0;
  std::int64_t steps = 1;  // number of steps this point is the mean of
  bool operator==(const CurvePoint&) const = default;
};
using Curve = std::vector<CurvePoint>;

// Omits non-finite points.
Curve curve_of(const RunData& run, Metric metric, XAxis axis);
// Like curve_of, but a point that combines several steps gives two points, their minimum and
// maximum.
Curve extremes_of(const RunData& run, Metric metric, XAxis axis);

// The mean of the points around each point, with weights factor^distance, where distance is in
// steps. Both sides count, so a falling curve is not delayed. Near the beginning, where a loss
// falls fastest, the factor is smaller: at most exp(-16 / step). A factor of 0 changes nothing. A
// point that combines n steps counts as n points at its middle.
Curve smoothed(const Curve& curve, double factor);
// The default factor for a curve: the weights fall to 1/e over 1/60 of its steps, at most 25 steps.
double suitable_smoothing(const Curve& curve);

// Reduces the curve to at most 2 * `buckets` points: the minimum and maximum of each bucket, so
// that no spike is lost, and the first and the last point.
Curve thinned(const Curve& curve, std::size_t buckets);

inline constexpr int kChartColours = 6, kChartDashes = 4;  // product: distinct styles

struct ChartSeries {
  std::string name;
  Curve curve;
  int style = 0;       // color: style % 6, dashes: style / 6
  bool faint = false;  // drawn in the background: the unsmoothed curve
  bool dots = false;   // a mark at each point
};

struct Chart {
  std::string title;
  std::string x_label;
  std::string y_label = {};  // "log scale" is added to it where it applies
  std::string latest = {};   // latest value, shown beside the title; empty: none
  std::vector<ChartSeries> series = {};
  bool logarithmic = false, from_zero = false;  // y
  bool legend = false;
};

std::string chart_html(const Chart& chart, int height);

struct SvgSize {
  int width = 760, height = 420;
};
std::string chart_svg(const Chart& chart, SvgSize size);

// Dots on lines with names, such as the results of variants: lower is better.
struct DotRow {
  std::string name;
  std::vector<double> values = {};  // a dot each
  double mean = 0;                  // a bar; NaN: none
  double low = 0, high = 0;         // a line between them; NaN: none
  std::vector<double> second = {};  // dots in another color
  bool hollow = false;              // those
};
struct DotPlot {
  std::string title;
  std::string first_name, second_name = {}, line_name = {};  // for the legend; empty: not there
  double line = 0;                                           // a dashed line across all rows; NaN: none
  std::vector<DotRow> rows = {};
};
std::string dot_plot_svg(const DotPlot& plot);
// Names are printed unchanged. Values are `o`, the mean is `|`, the dashed line is `:`.
std::string dot_plot_text(const DotPlot& plot, std::size_t width);

// An axis: maps values to positions and chooses the labeled values.
struct Scale {
  double low = 0, high = 1;  // low < high; both above 0 if logarithmic
  bool logarithmic = false;

  double place_of(double value) const;  // 0 at low, 1 at high

  // Round values for labels: between 2 and `most` of them if the range allows it.
  std::vector<double> ticks(int most) const;
};

// A scale that covers all values. `margin` adds 4 % of the range at both ends, `from_zero` includes
// zero. The scale is logarithmic if requested, all values are above 0 and the largest is more than
// three times the smallest. Without finite values it is 0 to 1.
struct ScaleOptions {
  bool logarithmic = false, from_zero = false, margin = true;
};
Scale scale_around(const std::vector<double>& values, ScaleOptions options);

// Formats a label: "0.25", "1.5k", "2M", "5e-05". `step` is the distance to the next label and
// determines the number of digits.
std::string tick_text(double value, double step);
// Formats all labels with enough digits to distinguish adjacent ones.
std::vector<std::string> tick_texts(const std::vector<double>& ticks);

}  // namespace thimble
