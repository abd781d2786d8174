#include "train/recipe.h"

#include <fmt/format.h>

#include <vector>

#include "base/joined.h"

namespace thimble {

namespace {

std::string muon(const TrainConfig& config) {
  return config.muon_weight_decay > 0 ? fmt::format("Muon (weight decay {})", config.muon_weight_decay)
                                      : "Muon";
}

std::string qat(const TrainConfig& config) {
  std::string text = fmt::format("int{} QAT", config.qat_bits);
  if (config.qat_start >= 1) text += fmt::format(" from step {}", config.qat_start);
  if (config.qat_start > 0 && config.qat_start < 1)
    text += fmt::format(" from {} of the run on", config.qat_start);
  return text;
}

}  // namespace

std::string recipe(const TrainConfig& config) {
  std::vector<std::string> parts;
  if (config.uses_muon()) parts.push_back(muon(config));
  if (config.qat_bits > 0) parts.push_back(qat(config));
  if (config.swa_start > 0)
    parts.push_back(
        fmt::format("SWA below {} of the rate every {} steps", config.swa_start, config.swa_every));
  if (config.ema_decay > 0) parts.push_back(fmt::format("EMA {}", config.ema_decay));
  return joined(parts, ", ");
}

}  // namespace thimble
