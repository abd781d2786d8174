#include "cli/dry_run.h"

#include <fmt/format.h>

#include <cmath>

#include "base/table.h"
#include "cli/console.h"
#include "model/config_toml.h"

namespace thimble {

namespace {

std::string origin_text(const ConfigBuilder& settings, const Key& key, bool changed) {
  using Layer = ConfigBuilder::Layer;
  if (changed) return "derived";
  switch (settings.origin(key.name)) {
    case Layer::initial:
      return "default";
    case Layer::preset:
      return fmt::format("preset {}", settings.preset_name());
    case Layer::derived:
      return "derived";
    case Layer::file:
      return "config file";
    case Layer::command:
      return "command line";
  }
  return "";
}

std::string settings_text(const DryRun& run) {
  Table table({"setting", "value", "from"});
  for (const Key& key : all_keys()) {
    const KeyValue value = key.get(run.config);
    const bool changed = value != key.get(run.settings.current());
    table.row({std::string(key.name), value_text(value), origin_text(run.settings, key, changed)});
  }
  return table.text(page_width(0));
}

std::string groups_text(const DryRun& run) {
  const TrainConfig& train = run.config.train;
  Table table({"group", "parameters", "optimizer", "rate"});
  for (int i = 0; i < kParamGroups; ++i) {
    const auto group = static_cast<ParamGroup>(i);
    const std::int64_t count = run.summary.by_group[static_cast<std::size_t>(i)];
    if (count == 0) continue;
    const bool muon = group == ParamGroup::matrix && train.uses_muon();
    table.row({std::string(group_name(group)), with_commas(count), muon ? "Muon" : "Adam",
               fmt::format("{}", train.rate(group))});
  }
  table.row(
      {"total", with_commas(run.summary.parameters), fmt::format("{} tensors", run.summary.tensors), ""});
  return table.text(page_width(0));
}

std::string costs_text(const DryRun& run) {
  const Summary& s = run.summary;
  Table table;
  table.row({"FLOPs per token", fmt::format("{} forward, {} training", with_unit(s.forward_flops_per_token),
                                            with_unit(s.training_flops_per_token))});
  std::string tokens = fmt::format("{} a step", with_commas(s.tokens_per_step));
  if (s.training_tokens > 0) tokens += fmt::format(", at most {} in all", with_unit(s.training_tokens));
  table.row({"tokens", tokens});
  table.row({"rows at a time", fmt::format("{} of {} tokens", s.micro_batch_rows, run.config.model.context)});
  return table.text(page_width(0));
}

// At the peak of a run on the CPU.
std::string memory_text(const Summary& s) {
  const MemoryPlan& plan = s.plan;
  const std::int64_t unshared =
      plan.prepared_bytes + plan.activation_bytes + plan.gradient_bytes + plan.scratch_bytes;
  Table table({"memory", "MiB"});
  const auto row = [&](std::string_view what, std::int64_t bytes) {
    if (bytes != 0)
      table.row({std::string(what), fmt::format("{:.1f}", static_cast<double>(bytes) / (1 << 20))});
  };
  row("parameters", s.weight_bytes);
  row("gradients of parameters", s.gradient_bytes);
  row("optimizer", s.optimizer_bytes);
  row("its update", s.update_bytes);
  row("prepared weights", plan.prepared_bytes);
  row("activations", plan.activation_bytes);
  row("gradients of activations", plan.gradient_bytes);
  row("scratch", plan.scratch_bytes);
  row("saved by reuse", plan.arena_bytes - unshared);
  row("validation", s.validation_bytes);
  row("program and libraries", s.process_bytes);
  row("total", s.total_bytes());
  return table.text(page_width(0));
}

}  // namespace

std::string as_text(const DryRun& run) {
  std::string text;
  for (const std::string& line : run.derivations) text += line + "\n";
  if (!text.empty()) text += "\n";
  text +=
      settings_text(run) + "\n" + groups_text(run) + "\n" + costs_text(run) + "\n" + memory_text(run.summary);
  if (run.device == Device::cuda)
    text += fmt::format("the GPU has {} free\n", in_bytes(static_cast<double>(run.available_bytes)));
  return text;
}

Json as_json(const DryRun& run) {
  const Summary& s = run.summary;
  Json parameters = Json::object().set("total", s.parameters), lines = Json::array();
  for (int i = 0; i < kParamGroups; ++i)
    parameters.set(std::string(group_name(static_cast<ParamGroup>(i))),
                   s.by_group[static_cast<std::size_t>(i)]);
  for (const std::string& line : run.derivations) lines.push(line);
  Json report = Json::object();
  report.set("status", "dry_run");
  report.set("preset", run.settings.preset_name());
  report.set("config", to_json(run.config));
  report.set("derivations", lines);
  report.set("parameters", parameters);
  report.set("tensors", s.tensors);
  report.set("flops_per_token", Json::object()
                                    .set("forward", std::llround(s.forward_flops_per_token))
                                    .set("training", std::llround(s.training_flops_per_token)));
  report.set("tokens_per_step", s.tokens_per_step);
  report.set("memory_bytes", Json::object()
                                 .set("weights", s.weight_bytes)
                                 .set("gradients", s.gradient_bytes)
                                 .set("optimizer", s.optimizer_bytes)
                                 .set("update", s.update_bytes)
                                 .set("activations", s.plan.arena_bytes)
                                 .set("validation", s.validation_bytes)
                                 .set("process", s.process_bytes)
                                 .set("total", s.total_bytes())
                                 .set("available", run.available_bytes));
  report.set("device", run.device == Device::cuda ? "cuda" : "cpu");
  return report;
}

}  // namespace thimble
