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

// A setting that is a step or, below 1, a fraction of the run.
std::string from(double start) {
  if (start == 0) return "";
  return start < 1 ? fmt::format(" from {} of the run on", start) : fmt::format(" from step {}", start);
}

std::string loop(const Config& config) {
  const ModelConfig& m = config.model;
  return fmt::format("layers {} to {} gone through {} times{}", m.loop_first, m.loop_last, m.loop_count + 1,
                     from(config.train.loop_start));
}

}  // namespace

std::string recipe(const Config& whole) {
  const TrainConfig& config = whole.train;
  std::vector<std::string> parts;
  if (config.uses_muon()) parts.push_back(muon(config));
  if (config.qat_bits > 0)
    parts.push_back(fmt::format("int{} QAT{}", config.qat_bits, from(config.qat_start)));
  if (config.swa_start > 0)
    parts.push_back(
        fmt::format("SWA below {} of the rate every {} steps", config.swa_start, config.swa_every));
  if (config.ema_decay > 0) parts.push_back(fmt::format("EMA {}", config.ema_decay));
  if (whole.model.loop_count > 0) parts.push_back(loop(whole));
  return joined(parts, ", ");
}

}  // namespace thimble
