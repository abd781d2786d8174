#include "report/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "base/error.h"
#include "base/table.h"
#include "config/keys.h"
#include "report/plot.h"
#include "report/report.h"

namespace thimble {

namespace {

constexpr double kNotMeasured = NAN;
constexpr std::array<std::string_view, 5> kIgnoredSettings = {"seed", "micro_batch", "keep",
                                                              "checkpoint_every", "checkpoint_activations"};

using Settings = std::vector<std::pair<std::string, std::string>>;

// Settings of the model, of training and of the data.
Settings settings_of(const RunData& run) {
  Settings settings;
  if (run.config)
    for (const Key& key : all_keys())
      if (std::ranges::find(kIgnoredSettings, key.name) == kIgnoredSettings.end())
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
  result.commands = run.commands();
  for (const auto& [file, bytes] : run.files) {
    if (file.ends_with(".thimble")) result.artifact_bytes = bytes;
    if (file.ends_with(".safetensors") && result.checkpoint_bytes == 0) result.checkpoint_bytes = bytes;
  }
  return result;
}

// One value per seed: a repeated run adds no information about the variation between seeds.
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
            fmt::format("{} and {} have the same settings and the same seed: they count as one seed",
                        earlier->second, run.name));
    }
  }
  std::set<std::int64_t> steps;
  for (const ComparedRun& run : comparison.runs) {
    steps.insert(run.steps);
    if (!run.status.status || !is_finished(*run.status.status))
      comparison.warnings.push_back(fmt::format("{} has not finished: {}", run.name, run.status.name));
  }
  if (steps.size() > 1)
    comparison.warnings.push_back(fmt::format("the runs have different numbers of steps: from {} to {}",
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

// Output as text and as JSON.

namespace {

std::string figure(double value) {
  return std::isfinite(value) ? fmt::format("{:.4f}", value) : "-";
}

std::string bytes_or_dash(std::uint64_t bytes) {
  return bytes > 0 ? with_commas(static_cast<long long>(bytes)) : "-";
}

std::string mean_text(const SampleMoments& moments) {
  if (moments.n == 0) return "-";
  if (moments.n == 1) return fmt::format("{:.4f}", moments.mean);
  return fmt::format("{:.4f} ± {:.4f}", moments.mean, moments.deviation);
}

std::string settings_table(const Comparison& comparison, std::size_t width) {
  if (comparison.differences.empty())
    return comparison.runs.size() > 1 ? "settings: identical except for the seed\n" : "";
  std::vector<std::string> headings = {"setting"};
  for (const RunGroup& group : comparison.groups) headings.push_back(group.name);
  Table table(headings);
  for (const SettingDifference& difference : comparison.differences) {
    std::vector<std::string> cells = {difference.key};
    cells.insert(cells.end(), difference.values.begin(), difference.values.end());
    table.row(std::move(cells));
  }
  return table.text(width);
}

std::vector<std::string> result_cells(const ComparedRun& run) {
  return {fmt::format("{}", run.seed), with_commas(run.steps), figure(run.val_bpb), figure(run.val_loss),
          figure(run.train_loss)};
}

std::vector<std::string> size_cells(const ComparedRun& run) {
  return {run.tokens_per_second > 0 ? with_commas(std::llround(run.tokens_per_second)) : "-",
          run.parameters > 0 ? with_commas(run.parameters) : "-", bytes_or_dash(run.checkpoint_bytes),
          bytes_or_dash(run.artifact_bytes)};
}

// Results, sizes or both. Numbers cannot be wrapped, so if both do not fit the width, prints two
// tables.
std::string runs_table(const Comparison& comparison, std::size_t width, bool results, bool sizes) {
  const auto joined = [&](std::vector<std::string> line, const std::vector<std::string>& first,
                          const std::vector<std::string>& second) {
    if (results) line.insert(line.end(), first.begin(), first.end());
    if (sizes) line.insert(line.end(), second.begin(), second.end());
    return line;
  };
  Table table(joined({"group", "run"}, {"seed", "steps", "val bpb", "val loss", "train loss"},
                     {"tokens/s", "parameters", "checkpoint", "artifact"}));
  for (const ComparedRun& run : comparison.runs)
    table.row(joined({comparison.groups[run.group].name, run.name}, result_cells(run), size_cells(run)));
  const std::string text = table.text(width);
  if (width == 0 || !results || !sizes || display_width(text.substr(0, text.find('\n'))) <= width)
    return text;
  return runs_table(comparison, width, true, false) + "\n" + runs_table(comparison, width, false, true);
}

std::string groups_table(const Comparison& comparison, std::size_t width) {
  if (comparison.groups.size() == comparison.runs.size()) return "";
  Table table({"group", "n", "val bpb", "val loss", "train loss", "tokens/s"});
  for (const RunGroup& group : comparison.groups)
    table.row({group.name, fmt::format("{}", group.seeds), mean_text(group.val_bpb),
               mean_text(group.val_loss), mean_text(group.train_loss),
               with_commas(std::llround(group.tokens_per_second.mean))});
  return "\nmeans and standard deviations\n" + table.text(width);
}

std::string p_text(double p) {
  return p < 1e-4 ? "p < 0.0001" : fmt::format("p = {:.4f}", p);
}

std::string tests_text(const Comparison& comparison) {
  if (comparison.tests.empty()) return "";
  std::string out = "\ncompared with A\n";
  for (const GroupTest& test : comparison.tests) {
    out += fmt::format("  {}: {} {:+.4f}", comparison.groups[test.group].name,
                       test.figure == "val_bpb" ? "val bpb" : "val loss", test.difference);
    if (test.welch)
      out += fmt::format(
          " (95 % interval {:+.4f} to {:+.4f}), {} (Welch's t {:.3g}, {:.3g} degrees of freedom)\n",
          test.welch->low, test.welch->high, p_text(test.welch->p), test.welch->t, test.welch->degrees);
    else
      out += ": a significance test needs at least two seeds in both groups\n";
  }
  return out;
}

std::string commands_text(const Comparison& comparison) {
  std::string out;
  for (const ComparedRun& run : comparison.runs)
    for (const std::string& command : run.commands) out += fmt::format("  {}: {}\n", run.name, command);
  return out.empty() ? "" : "\ncommands\n" + out;
}

// A line of an HTML table: a label, and a value per run.
std::string html_row(std::string_view label, const std::vector<std::string>& values) {
  std::string cells;
  for (const std::string& value : values) cells += fmt::format("<td>{}</td>", escaped(value));
  return fmt::format("<tr><th scope=\"row\">{}</th>{}</tr>\n", escaped(label), cells);
}

std::string html_table(const Comparison& comparison, std::string_view title, const std::string& rows) {
  std::string names;
  for (const ComparedRun& run : comparison.runs)
    names += fmt::format("<th scope=\"col\">{}</th>", escaped(run.name));
  return fmt::format(
      "<div><h2>{}</h2>\n<div class=\"scroll\"><table><thead><tr><td></td>{}</tr></thead>\n<tbody>{}</tbody>"
      "</table></div></div>\n",
      title, names, rows);
}

std::string results_html(const Comparison& comparison) {
  const auto row = [&](std::string_view label, const auto& text_of) {
    std::vector<std::string> values;
    for (const ComparedRun& run : comparison.runs) values.push_back(text_of(run));
    return html_row(label, values);
  };
  return row("status", [](const ComparedRun& run) { return run.status.name; }) +
         row("steps", [](const ComparedRun& run) { return with_commas(run.steps); }) +
         row("bits per byte", [](const ComparedRun& run) { return figure(run.val_bpb); }) +
         row("validation loss", [](const ComparedRun& run) { return figure(run.val_loss); }) +
         row("training loss", [](const ComparedRun& run) { return figure(run.train_loss); }) +
         row("tokens/s", [](const ComparedRun& run) { return size_cells(run)[0]; }) +
         row("parameters", [](const ComparedRun& run) { return size_cells(run)[1]; }) +
         row("seed", [](const ComparedRun& run) { return fmt::format("{}", run.seed); });
}

std::string settings_html(const Comparison& comparison) {
  std::string rows;
  for (const SettingDifference& difference : comparison.differences) {
    std::vector<std::string> values;
    for (const ComparedRun& run : comparison.runs) values.push_back(difference.values[run.group]);
    rows += html_row(difference.key, values);
  }
  return rows;
}

Json number(double value) {
  return std::isfinite(value) ? Json(value) : Json();
}

Json moments_json(const SampleMoments& moments) {
  return Json::object()
      .set("n", moments.n)
      .set("mean", moments.n > 0 ? Json(moments.mean) : Json())
      .set("std", moments.n > 1 ? Json(moments.deviation) : Json());
}

Json run_json(const Comparison& comparison, const ComparedRun& run) {
  Json commands = Json::array();
  for (const std::string& command : run.commands) commands.push(command);
  return Json::object()
      .set("name", run.name)
      .set("group", comparison.groups[run.group].name)
      .set("status", run.status.name)
      .set("commands", commands)
      .set("seed", run.seed)
      .set("steps", run.steps)
      .set("val_bpb", number(run.val_bpb))
      .set("val_loss", number(run.val_loss))
      .set("train_loss", number(run.train_loss))
      .set("tokens_per_second", run.tokens_per_second)
      .set("parameters", run.parameters)
      .set("checkpoint_bytes", run.checkpoint_bytes)
      .set("artifact_bytes", run.artifact_bytes > 0 ? Json(run.artifact_bytes) : Json());
}

Json group_json(const Comparison& comparison, const RunGroup& group) {
  Json runs = Json::array();
  for (const std::size_t run : group.runs) runs.push(comparison.runs[run].name);
  return Json::object()
      .set("name", group.name)
      .set("runs", runs)
      .set("val_bpb", moments_json(group.val_bpb))
      .set("val_loss", moments_json(group.val_loss))
      .set("train_loss", moments_json(group.train_loss))
      .set("tokens_per_second", moments_json(group.tokens_per_second));
}

Json test_json(const Comparison& comparison, const GroupTest& test) {
  Json json = Json::object()
                  .set("group", comparison.groups[test.group].name)
                  .set("against", comparison.groups[0].name)
                  .set("figure", test.figure)
                  .set("difference", test.difference);
  if (!test.welch) return json.set("p", Json());
  return json.set("interval_95", Json::array({test.welch->low, test.welch->high}))
      .set("t", number(test.welch->t))
      .set("degrees_of_freedom", test.welch->degrees)
      .set("p", test.welch->p);
}

}  // namespace

std::string comparison_text(const Comparison& comparison, std::size_t width) {
  const std::string settings = settings_table(comparison, width);
  return settings + (settings.empty() ? "" : "\n") + runs_table(comparison, width, true, true) +
         groups_table(comparison, width) + tests_text(comparison) + commands_text(comparison);
}

std::string comparison_html(const Comparison& comparison) {
  const std::string settings = settings_html(comparison);
  std::string out = html_table(comparison, "Final values", results_html(comparison));
  if (settings.empty())
    out += "<div><h2>Settings that differ</h2><p>None, except perhaps the seed.</p></div>\n";
  else
    out += html_table(comparison, "Settings that differ", settings);
  std::string commands;
  for (const ComparedRun& run : comparison.runs)
    for (const std::string& command : run.commands)
      commands += fmt::format("<h3>{}</h3>{}", escaped(run.name), command_html(command));
  return "<div class=\"facts\">\n" + out + "</div>\n" +
         (commands.empty() ? "" : "<h2>Commands</h2>\n" + commands);
}

Json comparison_json(const Comparison& comparison) {
  Json differences = Json::object(), runs = Json::array(), groups = Json::array(), tests = Json::array();
  for (const SettingDifference& difference : comparison.differences) {
    Json values = Json::object();
    for (std::size_t g = 0; g < comparison.groups.size(); ++g)
      values.set(comparison.groups[g].name, difference.values[g]);
    differences.set(difference.key, values);
  }
  for (const ComparedRun& run : comparison.runs) runs.push(run_json(comparison, run));
  for (const RunGroup& group : comparison.groups) groups.push(group_json(comparison, group));
  for (const GroupTest& test : comparison.tests) tests.push(test_json(comparison, test));
  return Json::object()
      .set("settings", differences)
      .set("runs", runs)
      .set("groups", groups)
      .set("tests", tests);
}

}  // namespace thimble
