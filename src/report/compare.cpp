#include "report/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>

#include "base/error.h"
#include "base/table.h"
#include "model/config_keys.h"
#include "report/plot.h"

namespace thimble {

namespace {

constexpr double kNotMeasured = NAN;
constexpr std::array<std::string_view, 5> kNoDifference = {"seed", "micro_batch", "keep", "checkpoint_every",
                                                           "checkpoint_activations"};

using Settings = std::vector<std::pair<std::string, std::string>>;

// Of the model and of training, and where the data came from.
Settings settings_of(const RunData& run) {
  Settings settings;
  if (run.config)
    for (const Key& key : all_keys())
      if (std::ranges::find(kNoDifference, key.name) == kNoDifference.end())
        settings.emplace_back(key.name, value_text(key.get(*run.config)));
  if (run.data.is_object())
    for (const auto& [key, value] : run.data.as_object())
      settings.emplace_back("data." + key, value.is_string() ? value.as_string() : value.dump());
  return settings;
}

std::string group_name(std::size_t group) {
  std::string name(1, static_cast<char>('A' + group % 26));
  return group < 26 ? name : name + std::to_string(group / 26);
}

ComparedRun compared(const RunData& run, std::string name, std::size_t group) {
  ComparedRun result{.name = std::move(name), .status = run.status(), .group = group};
  result.seed = run.config ? run.config->train.seed : 0;
  result.steps = run.steps.empty() ? 0 : run.steps.back().step;
  result.parameters = run.start ? run.start->parameters : 0;
  result.val_bpb = run.validations.empty() ? kNotMeasured : run.validations.back().bits_per_byte;
  result.val_loss = run.validations.empty() ? kNotMeasured : run.validations.back().loss;
  result.train_loss = run.final_train_loss();
  result.tokens_per_second = run.tokens_per_second();
  for (const auto& [file, bytes] : run.files) {
    if (file.ends_with(".thimble")) result.artifact_bytes = bytes;
    if (file.ends_with(".safetensors") && result.checkpoint_bytes == 0) result.checkpoint_bytes = bytes;
  }
  return result;
}

// One of each seed: the same run twice says nothing about luck.
std::vector<double> figures(const Comparison& comparison, const RunGroup& group,
                            double ComparedRun::*figure) {
  std::vector<double> values;
  std::set<std::int64_t> seeds;
  for (const std::size_t i : group.runs) {
    const ComparedRun& run = comparison.runs[i];
    if (std::isfinite(run.*figure) && seeds.insert(run.seed).second) values.push_back(run.*figure);
  }
  return values;
}

void add_moments(Comparison& comparison) {
  for (RunGroup& group : comparison.groups) {
    std::set<std::int64_t> seeds;
    for (const std::size_t i : group.runs) seeds.insert(comparison.runs[i].seed);
    group.seeds = seeds.size();
    group.val_bpb = moments_of(figures(comparison, group, &ComparedRun::val_bpb));
    group.val_loss = moments_of(figures(comparison, group, &ComparedRun::val_loss));
    group.train_loss = moments_of(figures(comparison, group, &ComparedRun::train_loss));
    group.tokens_per_second = moments_of(figures(comparison, group, &ComparedRun::tokens_per_second));
  }
}

void add_differences(std::span<const Settings> of_groups, Comparison& comparison) {
  std::vector<std::string> keys;
  for (const Settings& settings : of_groups)
    for (const auto& [key, value] : settings)
      if (std::ranges::find(keys, key) == keys.end()) keys.push_back(key);
  for (const std::string& key : keys) {
    SettingDifference difference{.key = key};
    for (const Settings& settings : of_groups) {
      const auto found = std::ranges::find(settings, key, &Settings::value_type::first);
      difference.values.push_back(found == settings.end() ? "-" : found->second);
    }
    if (std::set<std::string>(difference.values.begin(), difference.values.end()).size() > 1)
      comparison.differences.push_back(std::move(difference));
  }
}

void add_tests(Comparison& comparison) {
  for (std::size_t g = 1; g < comparison.groups.size(); ++g) {
    const RunGroup &first = comparison.groups[0], &other = comparison.groups[g];
    const bool bits = first.val_bpb.n > 0 && other.val_bpb.n > 0;
    if (!bits && (first.val_loss.n == 0 || other.val_loss.n == 0)) continue;
    const auto figure = bits ? &ComparedRun::val_bpb : &ComparedRun::val_loss;
    const std::vector<double> a = figures(comparison, first, figure), b = figures(comparison, other, figure);
    comparison.tests.push_back({.group = g,
                                .figure = bits ? "val_bpb" : "val_loss",
                                .welch = welch_test(a, b),
                                .difference = moments_of(b).mean - moments_of(a).mean});
  }
}

void add_warnings(Comparison& comparison) {
  for (const RunGroup& group : comparison.groups) {
    std::map<std::int64_t, std::string> by_seed;
    for (const std::size_t i : group.runs) {
      const ComparedRun& run = comparison.runs[i];
      const auto [earlier, is_new] = by_seed.emplace(run.seed, run.name);
      if (!is_new)
        comparison.warnings.push_back(
            fmt::format("{} and {} have the same settings and the same seed: as seeds they count once",
                        earlier->second, run.name));
    }
  }
  std::set<std::int64_t> steps;
  for (const ComparedRun& run : comparison.runs) {
    steps.insert(run.steps);
    if (run.status != "completed" && run.status != "wallclock" && run.status != "early_stop")
      comparison.warnings.push_back(fmt::format("{} has not come to its end: {}", run.name, run.status));
  }
  if (steps.size() > 1)
    comparison.warnings.push_back(fmt::format("the runs did not make the same number of steps: from {} to {}",
                                              with_commas(*steps.begin()), with_commas(*steps.rbegin())));
}

}  // namespace

Comparison compare_runs(std::span<const RunData> runs) {
  check(!runs.empty(), "[compare] no run");
  Comparison comparison;
  const std::vector<std::string> names = run_names(runs);
  std::vector<Settings> of_groups;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const Settings settings = settings_of(runs[i]);
    const auto group = static_cast<std::size_t>(std::ranges::find(of_groups, settings) - of_groups.begin());
    if (group == of_groups.size()) {
      of_groups.push_back(settings);
      comparison.groups.push_back({.name = group_name(group)});
    }
    comparison.groups[group].runs.push_back(i);
    comparison.runs.push_back(compared(runs[i], names[i], group));
  }
  add_moments(comparison);
  add_differences(of_groups, comparison);
  add_tests(comparison);
  add_warnings(comparison);
  return comparison;
}

}  // namespace thimble
