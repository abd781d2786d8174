#include "report/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/files.h"
#include "base/table.h"
#include "base/version.h"
#include "model/config_keys.h"
#include "report/chart.h"
#include "report/html.h"

namespace thimble {

namespace {

constexpr int kWideChart = 250, kChart = 170;  // pixels high
constexpr std::size_t kBuckets = 240;          // of a curve, two points each
constexpr std::size_t kSampleSteps = 8;        // of which texts are shown

std::string text_of(const Json& object, std::string_view key) {
  const Json* value = object.find(key);
  return value && value->is_string() ? value->as_string() : "";
}

double number_of(const Json& object, std::string_view key) {
  const Json* value = object.find(key);
  return value && value->is_number() ? value->as_double() : 0;
}

const Json* last_call(const RunData& run) {
  const Json* calls = run.record.find("calls");
  return calls && calls->is_array() && calls->size() > 0 ? &calls->as_array().back() : nullptr;
}

std::string tile(std::string_view label, const std::string& value, const std::string& below = "") {
  return fmt::format("<div><dt>{}</dt><dd>{}</dd><small>{}</small></div>\n", escaped(label), escaped(value),
                     escaped(below));
}

std::string tiles(const RunData& run) {
  std::string out;
  if (const ValidationPoint* best = run.best_validation()) {
    const bool bits = std::isfinite(best->bits_per_byte);
    out += tile(bits ? "bits per byte" : "validation loss",
                fmt::format("{:.4f}", bits ? best->bits_per_byte : best->loss),
                fmt::format("best, at step {}", with_commas(best->step)));
    if (bits) out += tile("validation loss", fmt::format("{:.4f}", best->loss), "nats per token");
  }
  if (!run.steps.empty()) {
    const std::int64_t step = run.steps.back().step;
    const double tokens = run.tokens_at(step);
    out += tile("training loss", fmt::format("{:.4f}", run.final_train_loss()), "last 50 steps");
    const std::int64_t wanted = run.config ? run.config->train.steps : 0;
    out += tile("steps", with_commas(step), wanted > 0 ? fmt::format("of {}", with_commas(wanted)) : "");
    const double unique = run.start ? static_cast<double>(run.start->tokens) : 0;
    out += tile("tokens", with_unit(tokens), unique > 0 ? fmt::format("{:.2f} epochs", tokens / unique) : "");
    out += tile(
        "time in steps", in_seconds(run.seconds()),
        run.tokens_per_second() > 0 ? fmt::format("{} tokens/s", with_unit(run.tokens_per_second())) : "");
  }
  if (run.start && run.config)
    out += tile("parameters", with_unit(static_cast<double>(run.start->parameters)),
                fmt::format("{} layers x {}", run.config->model.layers, run.config->model.dim));
  for (const auto& [name, bytes] : run.files)
    if (name.ends_with(".thimble"))
      out += tile("artifact", in_bytes(static_cast<double>(bytes)),
                  with_commas(static_cast<long long>(bytes)) + " bytes");
  return out.empty() ? "" : "<dl class=\"tiles\">\n" + out + "</dl>\n";
}

// How far it is: by steps, or by time where that decides.
std::string progress(const RunData& run) {
  if (!run.config || run.steps.empty()) return "";
  const TrainConfig& train = run.config->train;
  const auto step = static_cast<double>(run.steps.back().step);
  double share = train.steps > 0 ? step / static_cast<double>(train.steps) : 0;
  if (train.max_seconds > 0) share = std::max(share, run.seconds() / train.max_seconds);
  if (share <= 0) return "";
  share = std::min(share, 1.0);
  const std::string left =
      share < 1 ? fmt::format(", about {} left", in_seconds(run.seconds() * (1 - share) / share)) : "";
  return fmt::format(
      "<svg class=\"meter\" role=\"img\" aria-label=\"{0:.0f} % done\"><rect width=\"{0:.2f}%\" "
      "height=\"6\" rx=\"3\"/></svg><p class=\"muted\">{0:.0f} % done{1}</p>\n",
      100 * share, left);
}

// "2026-11-15T14:30:00Z" -> "2026-11-15 14:30 UTC"
std::string started_text(const std::string& stamp) {
  constexpr std::size_t kDate = 10, kMinutes = 16;
  return stamp.size() < kMinutes ? stamp
                                 : fmt::format("{} {} UTC", stamp.substr(0, kDate),
                                               stamp.substr(kDate + 1, kMinutes - kDate - 1));
}

std::string head(const RunData& run, const ReportOptions& options) {
  const std::string status = options.running ? "training" : run.status();
  const bool bad = status == "diverged" || status == "interrupted";
  std::string out = fmt::format(
      "<div class=\"title\"><h1>{}</h1><span class=\"status{}\">{}</span><span id=\"live\" class=\"muted\" "
      "role=\"status\"></span></div>\n",
      escaped(run.name()), bad ? " bad" : "", escaped(status));
  const Json* call = last_call(run);
  if (call)
    out += fmt::format("<p class=\"muted\">{}, thimble {}</p>\n",
                       escaped(started_text(text_of(*call, "started"))), escaped(text_of(*call, "version")));
  if (options.running) out += progress(run);
  return out + tiles(run);
}

std::string limits(const RunData& run) {
  const Json* diagnosis = run.record.find("diagnosis");
  if (!diagnosis) return "";
  std::string out =
      fmt::format("<div><h2>What limits this run: {}</h2>\n<ul>", escaped(text_of(*diagnosis, "limit")));
  if (const Json* evidence = diagnosis->find("evidence"); evidence && evidence->is_array())
    for (const Json& line : evidence->as_array())
      if (line.is_string()) out += fmt::format("<li>{}</li>", escaped(line.as_string()));
  return out +
         fmt::format("</ul>\n<p>What would help: {}.</p></div>\n", escaped(text_of(*diagnosis, "advice")));
}

// "0.5131", "14.2 k"
std::string figure_text(double value) {
  return std::abs(value) < 1000 ? fmt::format("{:.4g}", value) : with_unit(value);
}

Chart chart_of(const RunData& run, Metric metric, std::optional<double> smoothing) {
  const MetricInfo& info = info_of(metric);
  Chart chart{.title = std::string(info.title), .x_label = "step"};
  const Curve curve = curve_of(run, metric, XAxis::steps);
  if (!curve.empty()) chart.now = figure_text(curve.back().y);
  const bool noisy = is_noisy(metric);
  if (noisy)
    chart.series.push_back({.name = "each step",
                            .curve = thinned(extremes_of(run, metric, XAxis::steps), kBuckets),
                            .faint = true});
  chart.series.push_back(
      {.name = noisy ? "smoothed" : std::string(info.name),
       .curve =
           thinned(noisy ? smoothed(curve, smoothing.value_or(suitable_smoothing(curve))) : curve, kBuckets),
       .dots = info.sparse});
  chart.logarithmic = metric == Metric::grad_norm || info.sparse;
  chart.from_zero = metric == Metric::lr || metric == Metric::tokens_per_second;
  return chart;
}

Chart loss_chart(const RunData& run, std::optional<double> smoothing) {
  const Curve raw = extremes_of(run, Metric::loss, XAxis::steps);
  const Curve means = curve_of(run, Metric::loss, XAxis::steps);
  const Curve smooth = smoothed(means, smoothing.value_or(suitable_smoothing(means)));
  Chart chart{.title = "loss, nats per token", .x_label = "step", .logarithmic = true, .legend = true};
  if (!smooth.empty()) chart.now = fmt::format("{:.4f}", smooth.back().y);
  chart.series = {{.name = "each step", .curve = thinned(raw, kBuckets), .faint = true},
                  {.name = "smoothed", .curve = thinned(smooth, kBuckets)}};
  Curve validation = curve_of(run, Metric::val_loss, XAxis::steps);
  if (!validation.empty())
    chart.series.push_back(
        {.name = "validation", .curve = thinned(validation, kBuckets), .style = 1, .dots = true});
  return chart;
}

std::string charts(const RunData& run, const ReportOptions& options) {
  if (run.steps.empty() && run.validations.empty()) return "<p class=\"muted\">No step was made yet.</p>";
  std::string out = chart_html(loss_chart(run, options.smoothing), kWideChart);
  out.replace(out.find("class=\"chart\""), 13, "class=\"chart wide\"");
  for (const Metric metric : {Metric::val_bpb, Metric::lr, Metric::tokens_per_second, Metric::grad_norm}) {
    const Chart chart = chart_of(run, metric, options.smoothing);
    if (!chart.series.front().curve.empty()) out += chart_html(chart, kChart);
  }
  return "<div class=\"charts\">\n" + out + "</div>\n";
}

// The first, the last and some between them.
std::vector<SampledStep> chosen_samples(const RunData& run) {
  if (run.samples.size() <= kSampleSteps) return run.samples;
  std::vector<SampledStep> chosen;
  for (std::size_t i = 0; i < kSampleSteps; ++i)
    chosen.push_back(run.samples[i * (run.samples.size() - 1) / (kSampleSteps - 1)]);
  return chosen;
}

std::string samples(const RunData& run) {
  std::string out;
  for (const SampledStep& sample : chosen_samples(run)) {
    std::string heading = fmt::format("step {}", with_commas(sample.step));
    for (const ValidationPoint& point : run.validations)
      if (point.step == sample.step && std::isfinite(point.bits_per_byte))
        heading = fmt::format("step {}, {:.3f} bits per byte", with_commas(sample.step), point.bits_per_byte);
    out += fmt::format("<div><h3>{}</h3>", heading);
    for (const SampledStep::Said& said : sample.texts)
      out += fmt::format("<p class=\"said\"><span class=\"prompt\">{}</span>{}</p>", escaped(said.prompt),
                         escaped(said.text.empty() ? "(nothing)" : said.text));
    out += "</div>\n";
  }
  return out.empty() ? "" : "<h2>What it said</h2>\n<div class=\"samples\">\n" + out + "</div>\n";
}

std::string data_table_of(const RunData& run) {
  std::string rows;
  if (const std::string data = text_of(run.data, "data"); !data.empty()) rows += table_row("read from", data);
  if (const std::string val = text_of(run.data, "val_data"); !val.empty())
    rows += table_row("validated on", val);
  if (const std::string order = text_of(run.data, "order"); !order.empty()) rows += table_row("order", order);
  if (run.start) {
    const StartFacts& start = *run.start;
    const auto count = [&](const char* label, std::uint64_t value) {
      if (value > 0) rows += table_row(label, with_commas(static_cast<long long>(value)));
    };
    count("documents", start.documents);
    count("tokens", start.tokens);
    count("bytes", start.bytes);
    const auto tokens = static_cast<double>(start.tokens);
    if (start.bytes > 0 && start.tokens > 0)
      rows += table_row("bytes per token", fmt::format("{:.2f}", static_cast<double>(start.bytes) / tokens));
    if (start.parameters > 0)
      rows += table_row("tokens per parameter",
                        fmt::format("{:.3g}", tokens / static_cast<double>(start.parameters)));
    count("validation tokens", start.val_tokens);
  }
  return rows.empty() ? "" : "<div><h2>Data</h2><table>" + rows + "</table></div>\n";
}

std::string machine_table_of(const RunData& run) {
  const Json* call = last_call(run);
  const Json* host = call ? call->find("host") : nullptr;
  if (!host) return "";
  std::string rows = table_row("processor", text_of(*host, "cpu"));
  rows += table_row("threads", fmt::format("{:.0f}", number_of(*host, "threads")));
  rows += table_row("memory", in_bytes(number_of(*host, "memory_bytes")));
  if (run.config) {
    for (const Key& key : all_keys())
      if (key.name == "dtype") rows += table_row("computed in", value_text(key.get(*run.config)));
  }
  rows += table_row("thimble", fmt::format("{}, {}, {}", text_of(*call, "version"), text_of(*call, "build"),
                                           text_of(*call, "compiler")));
  return "<div><h2>Machine</h2><table>" + rows + "</table></div>\n";
}

std::string files_table_of(const RunData& run) {
  std::string rows;
  for (const auto& [name, bytes] : run.files)
    rows += table_row(name, fmt::format("{} bytes", with_commas(static_cast<long long>(bytes))));
  return rows.empty() ? "" : "<div><h2>Files</h2><table>" + rows + "</table></div>\n";
}

enum class Shown { changed, all };

// Changed: not as in a fresh config.
std::string settings_list(const Config& config, Shown shown) {
  const Config fresh;
  std::string out = "<dl class=\"settings\">\n";
  for (const Key& key : all_keys()) {
    const std::string value = value_text(key.get(config));
    const bool changed = value != value_text(key.get(fresh));
    if (changed || shown == Shown::all)
      out +=
          fmt::format("<div{}><dt>{}</dt><dd>{}</dd></div>\n",
                      changed && shown == Shown::all ? " class=\"changed\"" : "", key.name, escaped(value));
  }
  return out + "</dl>\n";
}

std::string settings(const RunData& run) {
  if (!run.config) return "";
  return fmt::format(
      "<h2>Settings</h2>\n{}<details><summary>All of them, also those as in a fresh "
      "config</summary>\n{}</details>\n",
      settings_list(*run.config, Shown::changed), settings_list(*run.config, Shown::all));
}

}  // namespace

Sections report_sections(const RunData& run, const ReportOptions& options) {
  const std::string facts = data_table_of(run) + machine_table_of(run) + files_table_of(run);
  return {{"head", head(run, options)},
          {"limits", options.running ? "" : limits(run)},
          {"curves", charts(run, options)},
          {"samples", samples(run)},
          {"facts", facts.empty() ? "" : "<div class=\"facts\">\n" + facts + "</div>\n"},
          {"settings", settings(run)},
          {"foot",
           fmt::format("<footer>Made by thimble {} from metrics.jsonl, config.toml and run.json of the run's "
                       "folder.</footer>",
                       version())}};
}

std::string report_html(const RunData& run, const ReportOptions& options) {
  return page_html(
      {.title = fmt::format("{} - thimble", run.name()), .sections = report_sections(run, options)});
}

std::filesystem::path write_report(FileOps& ops, const RunData& run, const ReportOptions& options) {
  const std::filesystem::path path = run.folder / "report.html";
  write_file(ops, path, report_html(run, options), Existing::replace);
  return path;
}

std::filesystem::path write_report(FileOps& ops, const std::filesystem::path& run,
                                   const ReportOptions& options) {
  return write_report(ops, read_run(run), options);
}

}  // namespace thimble
