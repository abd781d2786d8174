#include "sweep/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include "base/error.h"
#include "base/table.h"
#include "report/compare.h"

namespace thimble {

namespace {

std::string base_of(const std::vector<SweepResult>& results, const ReportRequest& request) {
  if (!request.base.empty()) return request.base;
  for (const SweepResult& result : results)
    if (result.base) return result.variant;
  return results.front().variant;
}

}  // namespace

SweepReport sweep_report(const std::vector<SweepResult>& results, const ReportRequest& request) {
  check(!results.empty(), "the sweep has no results yet");
  SweepReport report{.base = base_of(results, request)};
  report.bits =
      std::ranges::any_of(results, [](const SweepResult& r) { return std::isfinite(r.bits_per_byte()); });
  for (const SweepResult& result : results) {
    auto summary = std::ranges::find(report.variants, result.variant, &VariantSummary::name);
    if (summary == report.variants.end())
      summary = report.variants.insert(summary, {.name = result.variant, .settings = result.settings});
    const double value = report.bits ? result.bits_per_byte() : result.loss();
    if (result.status == kFailed)
      ++summary->failed;
    else if (!result.finished())
      ++summary->diverged;
    else if (std::isfinite(value)) {
      summary->seeds.push_back(result.seed);
      summary->values.push_back(value);
    }
  }
  for (VariantSummary& summary : report.variants) {
    const SampleMoments moments = moments_of(summary.values);
    summary.mean = moments.mean;
    summary.deviation = moments.deviation;
  }
  // In an order that does not depend on which run ended first.
  std::ranges::sort(report.variants, {}, [&](const VariantSummary& v) {
    return std::tuple(v.name != report.base, v.values.empty(), v.mean, v.name);
  });
  return report;
}

std::string report_text(const SweepReport& report, std::size_t width) {
  Table table({"variant", "seeds", report.bits ? "bits per byte" : "nats", "sd", "settings"});
  for (const VariantSummary& v : report.variants)
    table.row({v.name, std::to_string(v.values.size()),
               v.values.empty() ? "-" : fmt::format("{:.4f}", v.mean),
               v.values.size() > 1 ? fmt::format("{:.4f}", v.deviation) : "", v.settings});
  return table.text(width);
}

Json report_json(const SweepReport& report) {
  Json variants = Json::array();
  for (const VariantSummary& v : report.variants)
    variants.push(Json::object().set("name", v.name).set("mean", v.mean));
  return Json::object().set("base", report.base).set("variants", variants);
}

}  // namespace thimble
