#include "report/curve.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"

namespace thimble {

namespace {

constexpr std::array kMetrics = {
    MetricInfo{Metric::loss, "loss", "training loss, nats per token"},
    MetricInfo{Metric::val_bpb, "val_bpb", "validation, bits per byte", true},
    MetricInfo{Metric::val_loss, "val_loss", "validation loss, nats per token", true},
    MetricInfo{Metric::lr, "lr", "learning rate of the matrices"},
    MetricInfo{Metric::tokens_per_second, "tokens_per_second", "tokens per second"},
    MetricInfo{Metric::grad_norm, "grad_norm", "norm of the gradient"},
};

constexpr std::array<std::string_view, 3> kAxes = {"steps", "tokens", "seconds"};

double x_of(const RunData& run, XAxis axis, std::int64_t step, double elapsed) {
  if (axis == XAxis::tokens) return run.tokens_at(step);
  return axis == XAxis::seconds ? elapsed : static_cast<double>(step);
}

double figure_of(const RunData& run, Metric metric, const StepFigures& figures) {
  switch (metric) {
    case Metric::lr:
      return run.config ? run.config->train.rate(ParamGroup::matrix) * figures.multiplier : NAN;
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
  check(factor >= 0 && factor < 1, "[curve] smoothing by {}, expected 0 to below 1", factor);
  Curve result = curve;
  double mean = 0, weight = 0;
  for (CurvePoint& point : result) {
    const double kept = std::pow(factor, static_cast<double>(point.steps));
    mean = kept * mean + (1 - kept) * point.y;
    weight = kept * weight + (1 - kept);
    point.y = mean / weight;
  }
  return result;
}

double suitable_smoothing(const Curve& curve) {
  constexpr double kShare = 30, kMost = 50;
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

}  // namespace thimble
