#include "sweep/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <numbers>
#include <set>
#include <tuple>

#include "base/error.h"
#include "base/table.h"
#include "base/text.h"

namespace thimble {

namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
constexpr std::size_t kMostParts = 512;  // consecutive documents are merged into so many parts
constexpr double kSameText = 0.05;       // largest share by which the bytes of a text may differ
constexpr double kPackingGain = 0.001;   // bits per byte that packing gains at most

constexpr std::string_view kBlocks = "blocks of text";
constexpr std::array<std::string_view, 7> kVerdicts = {"base",     "better",         "worse",     "undecided",
                                                       "one seed", "no common seed", "incomplete"};

// Scores of documents, or of blocks of text, by their number.
struct Parts {
  std::string unit;
  std::map<std::size_t, Score> scores;
};

// Reads each file of scores once.
class ScoreFiles {
 public:
  // nullptr: the run has none.
  const Parts* of(const SweepResult& result) {
    if (result.scores.empty() || !std::filesystem::exists(result.scores)) return nullptr;
    const auto found = by_path_.find(result.scores);
    return &(found != by_path_.end() ? found->second : by_path_[result.scores] = read(result.scores));
  }

 private:
  static Parts read(const std::filesystem::path& path) {
    Parts parts;
    for (const ScoredPart& part : read_scores(path)) {
      parts.unit = part.is_document ? "documents" : kBlocks;
      parts.scores[part.index] = part.score;
    }
    return parts;
  }

  std::map<std::filesystem::path, Parts> by_path_;
};

class Reporting {
 public:
  Reporting(const std::vector<SweepResult>& results, const ReportRequest& request)
      : results_(results), request_(request) {}

  SweepReport make() {
    choose_results();
    choose_base();
    for (const SweepResult* result : chosen_) add(*result);
    for (VariantSummary& variant : report_.variants) summarize(variant);
    // An order that does not depend on which run ended first.
    std::ranges::sort(report_.variants, {}, [&](const VariantSummary& v) {
      return std::tuple(v.name != report_.base, v.values.empty(), v.moments.mean, v.name);
    });
    compare();
    return std::move(report_);
  }

 private:
  void choose_results() {
    for (const SweepResult& result : results_)
      if (request_.steps == 0 || result.steps == request_.steps) chosen_.push_back(&result);
    check(!chosen_.empty(), "there is no result of {} steps among {} results", request_.steps,
          results_.size());
    bits_ =
        std::ranges::any_of(chosen_, [](const SweepResult* r) { return std::isfinite(r->bits_per_byte()); });
    report_.unit = bits_ ? "bits per byte" : "nats per token";
    std::map<std::pair<std::string, std::int64_t>, const SweepResult*> seen;
    for (const SweepResult* result : chosen_) {
      const auto [other, is_new] = seen.emplace(std::pair(result->variant, result->seed), result);
      if (is_new) continue;
      const std::int64_t a = other->second->steps, b = result->steps;
      if (a != b)
        fail(Hint{fmt::format("choose with --steps {} or --steps {}", a, b)},
             "variant {} has results of {} and of {} steps for seed {}", result->variant, a, b, result->seed);
      fail(Hint{"report them separately"},
           "variant {} has two results for seed {}, with other settings or devices", result->variant,
           result->seed);
    }
  }

  void choose_base() {
    report_.base = request_.base;
    const auto has = [&](std::string_view name) {
      return std::ranges::any_of(chosen_, [&](const SweepResult* r) { return r->variant == name; });
    };
    if (report_.base.empty()) {
      const auto marked = std::ranges::find_if(chosen_, &SweepResult::base);
      report_.base = marked != chosen_.end() ? (*marked)->variant : chosen_.front()->variant;
    }
    if (has(report_.base)) return;
    std::vector<std::string_view> names;
    for (const SweepResult* result : chosen_) names.push_back(result->variant);
    const std::string_view best = nearest(report_.base, names);
    fail(best.empty() ? Hint{} : Hint{fmt::format("did you mean {}?", best)},
         "there is no result of the base '{}'", report_.base);
  }

  double value_of(const SweepResult& result) const { return bits_ ? result.bits_per_byte() : result.loss(); }

  void add(const SweepResult& result) {
    auto variant = std::ranges::find(report_.variants, result.variant, &VariantSummary::name);
    if (variant == report_.variants.end()) {
      const Json* note = result.line.find("note");
      variant = report_.variants.insert(variant, {.name = result.variant,
                                                  .note = note && note->is_string() ? note->as_string() : "",
                                                  .settings = result.settings});
    }
    if (result.status == kFailed)
      ++variant->failed;
    else if (!result.finished())
      ++variant->diverged;
    else if (std::isfinite(value_of(result)))
      variant->runs.push_back(&result);
  }

  void summarize(VariantSummary& variant) const {
    std::ranges::sort(variant.runs, {}, &SweepResult::seed);
    double speed = 0;
    for (const SweepResult* run : variant.runs) {
      variant.values.push_back(value_of(*run));
      if (std::isfinite(run->bytes)) variant.bytes = std::max(variant.bytes, run->bytes);
      speed += run->tokens_per_second / static_cast<double>(variant.runs.size());
      if (!std::isfinite(run->packed_bpb)) continue;
      variant.packed.push_back(run->packed_bpb);
      // Old results do not have the score before packing.
      const bool apart = std::isfinite(run->unpacked_bpb)
                             ? std::abs(run->unpacked_bpb - run->bits_per_byte()) > kPackingGain
                             : run->packed_bpb < run->bits_per_byte() - kPackingGain;
      variant.packed_apart = variant.packed_apart || apart;
    }
    variant.tokens_per_second = speed;
    variant.moments = moments_of(variant.values);
  }

  void compare() {
    estimate_noise();
    const VariantSummary& base = report_.variants.front();
    std::vector<double> tested;
    for (VariantSummary& variant : report_.variants) {
      if (&variant == &base) continue;
      variant.difference = difference_of(base, variant);
      const bool complete = variant.diverged + variant.failed == 0 && !variant.values.empty();
      variant.verdict = !complete                      ? Verdict::incomplete
                        : !variant.difference          ? Verdict::no_common_seed
                        : variant.difference->of_seeds ? Verdict::undecided
                                                       : Verdict::one_seed;
      if (variant.verdict == Verdict::undecided) tested.push_back(*variant.difference->p);
    }
    report_.tests = tested.size();
    const std::vector<double> adjusted = holm_adjusted(tested);
    std::size_t next = 0;
    for (VariantSummary& variant : report_.variants) {
      if (variant.verdict != Verdict::undecided) continue;
      variant.difference->holm = adjusted[next++];
      if (*variant.difference->holm < kDecided)
        variant.verdict = variant.difference->difference < 0 ? Verdict::better : Verdict::worse;
    }
  }

  // From all variants and seeds: two or three seeds of one variant are too few.
  void estimate_noise() {
    std::set<std::int64_t> seeds;
    for (const VariantSummary& variant : report_.variants)
      for (const SweepResult* run : variant.runs) seeds.insert(run->seed);
    std::vector<std::vector<double>> table;
    for (const VariantSummary& variant : report_.variants) {
      std::vector<double>& row = table.emplace_back(seeds.size(), kNone);
      for (std::size_t i = 0; i < variant.runs.size(); ++i) {
        const auto column = std::distance(seeds.begin(), seeds.find(variant.runs[i]->seed));
        row[static_cast<std::size_t>(column)] = variant.values[i];
      }
    }
    report_.noise = seed_noise(table);
  }

  std::optional<SweepDifference> difference_of(const VariantSummary& base, const VariantSummary& variant) {
    std::vector<std::pair<const SweepResult*, const SweepResult*>> pairs;
    SweepDifference result;
    for (std::size_t i = 0; i < variant.runs.size(); ++i) {
      const auto same = std::ranges::find(base.runs, variant.runs[i]->seed, &SweepResult::seed);
      if (same == base.runs.end()) continue;
      pairs.emplace_back(*same, variant.runs[i]);
      result.difference += value_of(*variant.runs[i]) - value_of(**same);
    }
    if (pairs.empty()) return std::nullopt;
    result.seeds = pairs.size();
    result.difference /= static_cast<double>(pairs.size());
    if (pairs.size() > 1 && report_.noise) result.of_seeds = seed_error(*report_.noise, pairs.size());
    const std::vector<PairedPart> parts = parts_of(pairs);
    result.parts = parts.size();
    const std::vector<PairedPart> groups = merged(parts);
    result.over_parts = paired_bootstrap(groups);
    test(groups.size(), result);
    return result;
  }

  static void test(std::size_t groups, SweepDifference& result) {
    if (!result.of_seeds) {
      if (!result.over_parts) return;
      result.p = result.over_parts->p;
      result.interval_95 = result.over_parts->interval_95;
      return;
    }
    std::vector<ErrorSource> sources = {*result.of_seeds};
    if (result.over_parts)
      sources.push_back({.error = result.over_parts->deviation, .degrees = static_cast<double>(groups - 1)});
    const DifferenceTest tested = difference_test(result.difference, sources);
    result.p = tested.p;
    result.interval_95 = tested.interval_95;
  }

  // The scores of both on each document, summed over seeds. Empty if a run has no scores or they
  // are of other text.
  std::vector<PairedPart> parts_of(
      const std::vector<std::pair<const SweepResult*, const SweepResult*>>& pairs) {
    std::map<std::size_t, PairedPart> sums;
    std::map<std::size_t, std::size_t> counts;
    for (const auto& [a_run, b_run] : pairs) {
      const Parts *a = files_.of(*a_run), *b = files_.of(*b_run);
      if (!a || !b || a->unit != b->unit || a->scores.size() != b->scores.size()) return {};
      report_.part_name = a->unit;
      for (const auto& [index, score] : a->scores) {
        const auto other = b->scores.find(index);
        if (other == b->scores.end()) continue;
        const auto one = size_of(score), two = size_of(other->second);
        if (std::abs(one - two) > kSameText * std::max(one, two) || one == 0) continue;
        PairedPart& sum = sums[index];
        sum.a += amount_of(score);
        sum.a_size += one;
        sum.b += amount_of(other->second);
        sum.b_size += two;
        ++counts[index];
      }
    }
    std::vector<PairedPart> parts;
    for (const auto& [index, sum] : sums)
      if (counts[index] == pairs.size()) parts.push_back(sum);
    const Parts& all = *files_.of(*pairs.front().first);
    const bool same_text =
        static_cast<double>(parts.size()) >= (1 - kSameText) * static_cast<double>(all.scores.size());
    return same_text ? parts : std::vector<PairedPart>();
  }

  double size_of(const Score& score) const {
    return bits_ ? static_cast<double>(score.bytes) : static_cast<double>(score.tokens);
  }
  double amount_of(const Score& score) const { return bits_ ? score.nats / std::numbers::ln2 : score.nats; }

  static std::vector<PairedPart> merged(const std::vector<PairedPart>& parts) {
    const std::size_t each = (parts.size() + kMostParts - 1) / kMostParts;
    std::vector<PairedPart> groups;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if (i % each == 0) groups.emplace_back();
      PairedPart& group = groups.back();
      group.a += parts[i].a;
      group.a_size += parts[i].a_size;
      group.b += parts[i].b;
      group.b_size += parts[i].b_size;
    }
    return groups;
  }

  const std::vector<SweepResult>& results_;
  const ReportRequest& request_;
  std::vector<const SweepResult*> chosen_;
  bool bits_ = true;
  ScoreFiles files_;
  SweepReport report_;
};

std::string p_text(const std::optional<double>& p) {
  return !p ? "" : *p < 1e-4 ? "< 0.0001" : fmt::format("{:.4f}", *p);
}

std::string verdict_text(const VariantSummary& variant) {
  std::vector<std::string> parts;
  if (variant.verdict != Verdict::incomplete) parts.emplace_back(name_of(variant.verdict));
  if (variant.diverged > 0) parts.push_back(fmt::format("{} diverged", variant.diverged));
  if (variant.failed > 0) parts.push_back(fmt::format("{} failed", variant.failed));
  if (parts.empty()) parts.emplace_back("no validation");
  return joined(parts, ", ");
}

// A column of the table.
struct Column {
  std::string heading;
  std::string (*cell)(const VariantSummary&);
};

std::vector<Column> columns_of(const SweepReport& report, const ReportStyle& style) {
  using V = VariantSummary;
  std::vector<Column> columns = {
      {"variant", [](const V& v) { return v.name; }},
      {"seeds", [](const V& v) { return std::to_string(v.values.size()); }},
      {report.unit,
       [](const V& v) { return v.values.empty() ? "-" : fmt::format("{:.4f}", v.moments.mean); }},
      {"sd",
       [](const V& v) { return v.values.size() < 2 ? "" : fmt::format("{:.4f}", v.moments.deviation); }},
      {"difference",
       [](const V& v) { return v.difference ? fmt::format("{:+.4f}", v.difference->difference) : ""; }},
      {"95 % interval",
       [](const V& v) {
         return v.difference && v.difference->p
                    ? fmt::format("{:+.4f} to {:+.4f}", v.difference->interval_95.low,
                                  v.difference->interval_95.high)
                    : "";
       }},
      {"p", [](const V& v) { return v.difference ? p_text(v.difference->p) : ""; }},
      {"Holm", [](const V& v) { return v.difference ? p_text(v.difference->holm) : ""; }},
      {"verdict", verdict_text}};
  const auto any = [&](auto has) { return std::ranges::any_of(report.variants, has); };
  if (any([](const V& v) { return !v.packed.empty(); })) {
    columns.push_back({"packed", [](const V& v) {
                         return v.packed.empty() ? ""
                                                 : fmt::format("{:.4f}{}", moments_of(v.packed).mean,
                                                               v.packed_apart ? "*" : "");
                       }});
    columns.push_back(
        {"bytes", [](const V& v) { return v.bytes == 0 ? "" : with_commas(std::llround(v.bytes)); }});
  }
  if (style.speed)
    columns.push_back({"tokens/s", [](const V& v) {
                         return v.tokens_per_second > 0 ? with_commas(std::llround(v.tokens_per_second)) : "";
                       }});
  columns.push_back({"settings", [](const V& v) { return v.settings; }});
  return columns;
}

std::string table_text(const SweepReport& report, const ReportStyle& style) {
  const std::vector<Column> columns = columns_of(report, style);
  std::vector<std::vector<std::string>> rows(1);
  for (const Column& column : columns) rows[0].push_back(column.heading);
  for (const VariantSummary& variant : report.variants) {
    rows.emplace_back();
    for (const Column& column : columns) rows.back().push_back(column.cell(variant));
  }
  if (style.form == ReportForm::text) {
    Table table(rows[0]);
    for (std::size_t i = 1; i < rows.size(); ++i) table.row(rows[i]);
    return table.text(style.width);
  }
  rows.insert(rows.begin() + 1, std::vector<std::string>(columns.size(), "---"));
  std::string text;
  for (const std::vector<std::string>& row : rows) text += "| " + joined(row, " | ") + " |\n";
  return text;
}

std::string names_with(const SweepReport& report, Verdict verdict) {
  std::vector<std::string> names;
  for (const VariantSummary& variant : report.variants)
    if (variant.verdict == verdict) names.push_back(variant.name);
  return joined(names, ", ");
}

std::string explanation(const SweepReport& report) {
  std::string text;
  for (const Verdict verdict : {Verdict::better, Verdict::worse, Verdict::undecided, Verdict::one_seed,
                                Verdict::no_common_seed, Verdict::incomplete})
    if (const std::string names = names_with(report, verdict); !names.empty())
      text += fmt::format("{}: {}\n", name_of(verdict), names);
  if (report.variants.size() < 2) return text;
  text += fmt::format("\ndifference: from {}, with the same seeds\n", report.base);
  std::vector<std::string> errors;
  if (report.noise)
    errors.push_back(fmt::format("the seeds (noise of a run {:.4f}, {:g} degrees of freedom)",
                                 report.noise->deviation, report.noise->degrees));
  if (!report.part_name.empty()) errors.push_back(fmt::format("a bootstrap over {}", report.part_name));
  if (!errors.empty()) text += fmt::format("interval and p: errors of {}\n", joined(errors, " and of "));
  if (report.part_name == kBlocks)
    text += "the held-out data have fewer than 20 documents, so they are divided into blocks\n";
  if (report.tests > 0)
    text += fmt::format("Holm: p corrected for {} variants; below {} a difference is decided\n", report.tests,
                        kDecided);
  else
    text += "nothing is decided: a decision needs at least two seeds that a variant and the base share\n";
  if (std::ranges::any_of(report.variants, &VariantSummary::packed_apart))
    text += "*: scored with another stride or from another checkpoint than before packing\n";
  return text;
}

Json number(double value) {
  return std::isfinite(value) ? Json(value) : Json();
}

Json interval_json(const Interval& interval) {
  return Json::array({number(interval.low), number(interval.high)});
}

Json difference_json(const SweepDifference& d) {
  Json json = Json::object()
                  .set("difference", d.difference)
                  .set("seeds", d.seeds)
                  .set("parts", d.parts)
                  .set("interval_95", d.p ? interval_json(d.interval_95) : Json())
                  .set("p", d.p ? Json(*d.p) : Json())
                  .set("p_holm", d.holm ? Json(*d.holm) : Json());
  if (d.over_parts)
    json.set("over_parts", Json::object()
                               .set("difference", d.over_parts->difference)
                               .set("error", d.over_parts->deviation)
                               .set("interval_95", interval_json(d.over_parts->interval_95))
                               .set("p", d.over_parts->p));
  if (d.of_seeds)
    json.set("of_seeds",
             Json::object().set("error", d.of_seeds->error).set("degrees_of_freedom", d.of_seeds->degrees));
  return json;
}

template <class Get>
Json list_of(const std::vector<const SweepResult*>& runs, Get get) {
  Json list = Json::array();
  for (const SweepResult* run : runs) list.push(get(*run));
  return list;
}

}  // namespace

std::string_view name_of(Verdict verdict) {
  return kVerdicts[static_cast<std::size_t>(verdict)];
}

const VariantSummary* SweepReport::find(std::string_view name) const {
  const auto found = std::ranges::find(variants, name, &VariantSummary::name);
  return found == variants.end() ? nullptr : &*found;
}

SweepReport sweep_report(const std::vector<SweepResult>& results, const ReportRequest& request) {
  return Reporting(results, request).make();
}

std::string report_text(const SweepReport& report, const ReportStyle& style) {
  return table_text(report, style) + "\n" + explanation(report);
}

Json report_json(const SweepReport& report) {
  Json variants = Json::array();
  for (const VariantSummary& v : report.variants) {
    Json values = Json::array();
    for (const double value : v.values) values.push(value);
    Json variant = Json::object()
                       .set("name", v.name)
                       .set("settings", v.settings)
                       .set("note", v.note)
                       .set("seeds", list_of(v.runs, [](const SweepResult& r) { return Json(r.seed); }))
                       .set("values", values)
                       .set("mean", v.values.empty() ? Json() : Json(v.moments.mean))
                       .set("std", v.values.size() > 1 ? Json(v.moments.deviation) : Json())
                       .set("diverged", v.diverged)
                       .set("failed", v.failed)
                       .set("packed_bpb", v.packed.empty() ? Json() : Json(moments_of(v.packed).mean))
                       .set("bytes", v.bytes > 0 ? Json(std::llround(v.bytes)) : Json())
                       .set("tokens_per_second", number(v.tokens_per_second))
                       .set("verdict", name_of(v.verdict))
                       .set("decided", v.verdict == Verdict::better || v.verdict == Verdict::worse);
    if (v.difference) variant.set("difference", difference_json(*v.difference));
    variants.push(std::move(variant));
  }
  Json noise;
  if (report.noise)
    noise =
        Json::object().set("std", report.noise->deviation).set("degrees_of_freedom", report.noise->degrees);
  return Json::object()
      .set("base", report.base)
      .set("unit", report.unit)
      .set("parts", report.part_name)
      .set("noise", noise)
      .set("tests", report.tests)
      .set("variants", variants);
}

DotPlot report_plot(const SweepReport& report) {
  DotPlot plot{.title = report.unit + ": each seed and the mean (lower is better)",
               .first_name = "a seed",
               .line = kNone};
  const VariantSummary& base = report.variants.front();
  if (!base.values.empty()) {
    plot.line = base.moments.mean;
    plot.line_name = "mean of " + report.base;
  }
  bool apart = false, packed = false;
  for (const VariantSummary& v : report.variants) {
    DotRow row{.name = v.name,
               .values = v.values,
               .mean = v.values.empty() ? kNone : v.moments.mean,
               .low = kNone,
               .high = kNone,
               .second = v.packed,
               .hollow = v.packed_apart};
    if (v.difference && v.difference->p && !base.values.empty()) {
      row.low = base.moments.mean + v.difference->interval_95.low;
      row.high = base.moments.mean + v.difference->interval_95.high;
    }
    packed = packed || !v.packed.empty();
    apart = apart || v.packed_apart;
    plot.rows.push_back(std::move(row));
  }
  if (packed) plot.second_name = apart ? "packed (hollow: another stride or checkpoint)" : "packed";
  return plot;
}

Json record_of(const SweepReport& report, const std::string& name, const VariantSummary& variant) {
  constexpr std::size_t kFewestSeeds = 3;
  constexpr double kLargestP = 0.01, kBudget = 16'000'000;  // the rule of records/README.md
  const VariantSummary& base = report.variants.front();
  const auto figures = [](const VariantSummary& v, std::string_view key) {
    return list_of(v.runs, [&](const SweepResult& r) {
      const Json* value = r.line.find(key);
      return value ? *value : Json();
    });
  };
  const std::optional<WelchTest> test = welch_test(base.values, variant.values);
  const double difference = variant.moments.mean - base.moments.mean;
  const bool fits =
      std::ranges::all_of(variant.runs, [&](const SweepResult* r) { return r->bytes <= kBudget; });
  const bool holds = std::min(base.values.size(), variant.values.size()) >= kFewestSeeds && test &&
                     test->p < kLargestP && difference < 0 && fits;
  return Json::object()
      .set("name", name)
      .set("variant", variant.name)
      .set("settings", variant.settings)
      .set("steps", variant.runs.front()->steps)
      .set("device", variant.runs.front()->device)
      .set("seeds", figures(variant, "seed"))
      .set("val_bpb", figures(variant, "val_bpb"))
      .set("mean_val_bpb", variant.moments.mean)
      .set("packed_bpb", figures(variant, "packed_bpb"))
      .set("mean_packed_bpb", variant.packed.empty() ? Json() : Json(moments_of(variant.packed).mean))
      .set("bytes", figures(variant, "bytes"))
      .set("golf_bytes", figures(variant, "golf_bytes"))
      .set("tokens_per_second", number(variant.tokens_per_second))
      .set("against", base.name)
      .set("against_seeds", figures(base, "seed"))
      .set("against_val_bpb", figures(base, "val_bpb"))
      .set("against_packed_bpb", figures(base, "packed_bpb"))
      .set("difference", difference)
      .set("p", test ? Json(test->p) : Json())
      .set("holds", holds)
      .set("commands", figures(variant, "command"))
      .set("against_commands", figures(base, "command"));
}

}  // namespace thimble
