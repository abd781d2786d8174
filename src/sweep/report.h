// Compares the variants of a sweep with its base.
//
// A difference may be an accident of the held-out text or of the seeds. The error of the first kind
// is that of a paired bootstrap over the documents, of the second that of the noise between seeds.
// A t-test with both gives p, which Holm's correction adjusts for the number of variants. With one
// seed nothing is decided.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "report/chart.h"
#include "report/statistics.h"
#include "sweep/results.h"

namespace thimble {

inline constexpr double kDecided = 0.05;  // largest corrected p of a decided difference

enum class Verdict { base, better, worse, undecided, one_seed, no_common_seed, incomplete };
std::string_view name_of(Verdict verdict);

// A variant minus the base, in bits per byte or nats per token.
struct SweepDifference {
  double difference = 0;  // mean over the common seeds
  std::size_t seeds = 0;  // that both have
  std::size_t parts = 0;  // documents or blocks that both have; 0: the scores cannot be compared
  std::optional<PairedBootstrap> over_parts = {};
  std::optional<ErrorSource> of_seeds = {};  // nullopt: with one seed
  Interval interval_95 = {};                 // without seeds: of the bootstrap
  std::optional<double> p = {};              // nullopt: neither documents nor seeds
  std::optional<double> holm = {};           // nullopt: not tested
};

struct VariantSummary {
  std::string name, note, settings;
  std::vector<const SweepResult*> runs = {};  // with a figure, by seed
  std::vector<double> values = {};            // of `runs`
  std::size_t diverged = 0, failed = 0;
  SampleMoments moments = {};
  std::vector<double> packed = {};  // bits per byte of those runs that were packed
  bool packed_apart = false;        // packed scores are not comparable: another stride or checkpoint
  double bytes = 0;                 // of the largest artifact; 0: none
  double tokens_per_second = 0;     // mean
  std::optional<SweepDifference> difference = {};  // nullopt: the base, or no common seed
  Verdict verdict = Verdict::base;
};

struct SweepReport {
  std::string unit;  // "bits per byte" or "nats per token"
  std::string base;
  std::vector<VariantSummary> variants = {};  // the base first, then by mean
  std::optional<SeedNoise> noise = {};
  std::size_t tests = 0;       // variants that Holm's correction counts
  std::string part_name = {};  // "documents" or "blocks of text"; empty: no scores

  const VariantSummary* find(std::string_view name) const;
};

struct ReportRequest {
  std::string base = {};   // empty: the base of the sweep
  std::int64_t steps = 0;  // only runs of so many steps; 0: all
};

// `results` must outlive the report. Throws Error if there is nothing to report, or if a variant
// has several results for a seed.
SweepReport sweep_report(const std::vector<SweepResult>& results, const ReportRequest& request);

enum class ReportForm { text, markdown };
struct ReportStyle {
  ReportForm form = ReportForm::text;
  std::size_t width = 0;  // of text; 0: no limit
  bool speed = false;     // with tokens per second, which differ from machine to machine
};
std::string report_text(const SweepReport& report, const ReportStyle& style);
Json report_json(const SweepReport& report);
DotPlot report_plot(const SweepReport& report);

// A record of a variant against the base (records/README.md): results, Welch's t-test, commands.
Json record_of(const SweepReport& report, const std::string& name, const VariantSummary& variant);

}  // namespace thimble
