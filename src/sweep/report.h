// Compares the variants of a sweep with its base.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "sweep/results.h"

namespace thimble {

struct VariantSummary {
  std::string name, settings;
  std::vector<std::int64_t> seeds = {};
  std::vector<double> values = {};  // bits per byte, or nats per token, of each seed
  std::size_t diverged = 0, failed = 0;
  double mean = 0, deviation = 0;
};

struct SweepReport {
  bool bits = true;  // values are bits per byte
  std::string base;
  std::vector<VariantSummary> variants = {};  // the base first, then by mean
};

struct ReportRequest {
  std::string base = {};  // empty: the base of the sweep
};

SweepReport sweep_report(const std::vector<SweepResult>& results, const ReportRequest& request);
std::string report_text(const SweepReport& report, std::size_t width = 0);
Json report_json(const SweepReport& report);

}  // namespace thimble
