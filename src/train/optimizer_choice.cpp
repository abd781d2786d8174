#include "train/optimizer_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/table.h"
#include "model/params.h"

namespace thimble {

namespace {

// 0.003 is the best rate measured at 4 layers x 128, 0.001 a good one at 9 x 512.
constexpr double kAdamRate = 0.28;
constexpr double kFineTuningShare = 0.1;
// docs/guides/fine-tune.md has the measurements.
constexpr double kAdapterShare = 2;
constexpr std::int64_t kMuonSteps = 5, kLongestWarmup = 20;
constexpr double kMuonRate = 0.02;

double two_digits(double value) {
  return std::stod(fmt::format("{:.2g}", value));
}

void derive_adamw(double share, std::int64_t parameters, ConfigBuilder& settings) {
  settings.derive("lr", two_digits(share * adamw_rate(parameters)));
  for (const std::string_view rate : kGroupRates) settings.derive(rate, 0.0);
}

// If the user gave `lr`, it is the rate of every group.
void derive_muon(double share, ConfigBuilder& settings) {
  if (settings.given("lr")) return;
  const Config& preset = settings.before_user();
  const auto derive = [&](std::string_view key, double rate) {
    settings.derive(key, rate > 0 ? two_digits(share * rate) : rate);
  };
  for (const std::string_view key : kGroupRates) derive(key, std::get<double>(find_key(key)->get(preset)));
  if (!preset.optimizer.uses_muon()) derive("matrix_lr", kMuonRate);
  derive("lr", preset.optimizer.lr);
}

void derive_warmup(ConfigBuilder& settings) {
  const std::int64_t steps = settings.current().train.steps;
  const std::int64_t longest = steps > 0 ? std::max<std::int64_t>(1, steps / 10) : kLongestWarmup;
  settings.derive("warmup_steps", std::min(longest, kLongestWarmup));
}

std::string rates_text(const OptimizerConfig& optimizer, std::int64_t parameters, bool derived) {
  const double matrices = optimizer.rate(ParamGroup::matrix);
  std::string text = fmt::format("learning rate {}", matrices);
  if (matrices != optimizer.lr) text += fmt::format(" for matrices, else {}", optimizer.lr);
  if (derived) text += fmt::format(" for {} parameters", with_commas(parameters));
  return text;
}

}  // namespace

double adamw_rate(std::int64_t parameters) {
  return kAdamRate / std::cbrt(static_cast<double>(std::max<std::int64_t>(parameters, 1)));
}

std::string choose_optimizer(const OptimizerChoice& choice, ConfigBuilder& settings) {
  const bool steps_given = settings.given("muon_steps");
  const bool has_muon = settings.current().optimizer.uses_muon();
  bool muon = has_muon && (steps_given || !choice.fine_tunes);
  if (!choice.name.empty()) muon = choice.name == "muon";
  check(!steps_given || muon == has_muon, Hint{"remove one of them"},
        "--optimizer {} contradicts muon_steps = {}", choice.name, settings.current().optimizer.muon_steps);
  if (muon != has_muon) settings.derive("muon_steps", muon ? kMuonSteps : std::int64_t{0});
  // A config file without a preset is a complete choice of its own.
  const bool asked = !choice.name.empty() || settings.origin("muon_steps") == ConfigBuilder::Layer::command;
  const bool is_the_presets = muon == settings.before_user().optimizer.uses_muon();
  if (!choice.fine_tunes && (!asked || is_the_presets)) return "";

  const bool adapts = static_cast<bool>(settings.current().lora);
  const double share = adapts ? kAdapterShare : choice.fine_tunes ? kFineTuningShare : 1;
  const std::int64_t parameters = ParamTable(settings.resolve().model).count();
  if (muon)
    derive_muon(share, settings);
  else
    derive_adamw(share, parameters, settings);
  if (choice.fine_tunes) derive_warmup(settings);
  const std::string rates =
      rates_text(settings.current().optimizer, parameters, !muon && !settings.given("lr"));
  const std::string_view name = muon ? "Muon" : "AdamW";
  if (!choice.fine_tunes) return fmt::format("training with {}, {}", name, rates);
  const std::int64_t warmup = settings.current().train.warmup_steps;
  return fmt::format(
      "fine-tuning with {}, {}, {} step{} of warm-up (see --optimizer, --lr and --warmup-steps)", name, rates,
      warmup, warmup == 1 ? "" : "s");
}

}  // namespace thimble
