// A chart as SVG: curves over a grid with labelled axes.
//
// One drawing serves two frames. Inside it, x is given in percent and curves lie in an inner picture that is stretched,
// so that a page can make it as wide as there is room while texts and lines keep their size.
//
//   chart_html   for a page: a <figure> with title, legend and the values for web/page.html's script to show
//   chart_svg    a file of its own, light or dark as its reader wishes
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "report/run_data.h"

namespace thimble {

// Curves of a run: figures over steps, tokens or seconds, smoothed and thinned for drawing.
enum class Metric { loss, val_loss, val_bpb, lr, tokens_per_second, grad_norm };
enum class XAxis { steps, tokens, seconds };

struct MetricInfo {
  Metric metric;
  std::string_view name;   // as typed: "val_bpb"
  std::string_view title;  // "validation, bits per byte"
  bool sparse = false;     // a few measured points, not one a step: never smoothed, drawn with dots
};
std::span<const MetricInfo> all_metrics();
const MetricInfo& info_of(Metric metric);
bool is_noisy(Metric metric);  // worth smoothing: loss, speed, norm of the gradient
std::optional<Metric> metric_named(std::string_view name);

std::string_view name_of(XAxis axis);
std::optional<XAxis> x_axis_named(std::string_view name);

struct CurvePoint {
  double x = 0, y = 0;
  std::int64_t steps = 1;  // that it is the mean of
  bool operator==(const CurvePoint&) const = default;
};
using Curve = std::vector<CurvePoint>;

// Points that are not finite are left out.
Curve curve_of(const RunData& run, Metric metric, XAxis axis);
// As far as single steps went: where a point of the run stands for several, its lowest and its highest.
Curve extremes_of(const RunData& run, Metric metric, XAxis axis);

// Exponential mean: m = factor * m + (1 - factor) * y, divided by what the weights add up to, so that the beginning is
// not pulled towards zero. 0: as it was. A point that stands for n steps counts as n equal ones.
Curve smoothed(const Curve& curve, double factor);
// As much as suits a curve of so many steps: the mean reaches over a thirtieth of it, over at most 50 steps.
double suitable_smoothing(const Curve& curve);

// At most 2 * `buckets` points; what is left of each bucket is its lowest and its highest point, so that no spike is
// lost. First and last point stay.
Curve thinned(const Curve& curve, std::size_t buckets);

inline constexpr int kChartColours = 6, kChartDashes = 4;  // together: so many curves can be told apart

struct ChartSeries {
  std::string name;
  Curve curve;
  int style = 0;       // colour style % 6, dashes style / 6
  bool faint = false;  // in the background: what was smoothed
  bool dots = false;   // a mark at each point
};

struct Chart {
  std::string title;
  std::string x_label;
  std::string now = {};  // the latest figure, shown beside the title; empty: none
  std::vector<ChartSeries> series = {};
  bool logarithmic = false, from_zero = false;  // y
  bool legend = false;
};

std::string chart_html(const Chart& chart, int height);

struct SvgSize {
  int width = 760, height = 420;
};
std::string chart_svg(const Chart& chart, SvgSize size);

// An axis: which values lie where, and which of them get a label.
struct Scale {
  double low = 0, high = 1;  // low < high; both above 0 where it is logarithmic
  bool logarithmic = false;

  double place_of(double value) const;  // 0 at low, 1 at high

  // Round values, few enough: between 2 and `most` of them where the range allows it.
  std::vector<double> ticks(int most) const;
};

// Around all values, with a little air. `from_zero`: zero is on it. Logarithmic only where that is asked for, all
// values are above 0 and the largest is more than three times the smallest. No finite value at all: 0 to 1.
struct ScaleWish {
  bool logarithmic = false, from_zero = false, air = true;
};
Scale scale_around(const std::vector<double>& values, ScaleWish wish);

// "0.25", "1,500" as "1.5k", "2M", "5e-05": `step` is the distance to the next label, which says how many digits matter.
std::string tick_text(double value, double step);
// All at once, with as many digits as tell neighbours apart.
std::vector<std::string> tick_texts(const std::vector<double>& ticks);

}  // namespace thimble
