// Curves of a run: figures over steps, tokens or seconds, smoothed and thinned for drawing.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "report/run_data.h"

namespace thimble {

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

}  // namespace thimble
