// A comparison for people and for programs.
#include <fmt/format.h>

#include <cmath>

#include "base/table.h"
#include "report/compare.h"

namespace thimble {

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
    return comparison.runs.size() > 1 ? "settings: all alike but for the seed\n" : "";
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

// Results, sizes or both. Figures cannot be broken onto further lines: where both do not fit they are two tables.
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
  std::string out = "\nagainst A\n";
  for (const GroupTest& test : comparison.tests) {
    out += fmt::format("  {}: {} {:+.4f}", comparison.groups[test.group].name,
                       test.figure == "val_bpb" ? "val bpb" : "val loss", test.difference);
    if (test.welch)
      out += fmt::format(
          " (95 % interval {:+.4f} to {:+.4f}), {} (Welch's t {:.3g}, {:.3g} degrees of freedom)\n",
          test.welch->low, test.welch->high, p_text(test.welch->p), test.welch->t, test.welch->degrees);
    else
      out += ": whether that is luck takes at least two seeds of both\n";
  }
  return out;
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
  return Json::object()
      .set("name", run.name)
      .set("group", comparison.groups[run.group].name)
      .set("status", run.status)
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
         groups_table(comparison, width) + tests_text(comparison);
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
