// Small models with random weights, so that no part is disabled by a zero weight, and random
// tokens.
#pragma once

#include <random>

#include "config/builder.h"
#include "model/model.h"

namespace thimble {

inline ModelConfig small_config(const std::string& preset, const std::vector<std::string>& more = {}) {
  ConfigBuilder settings;
  settings.preset(preset);
  for (const char* assignment : {"vocab_size=40", "context=24", "layers=4", "dim=32", "heads=4", "kv_heads=2",
                                 "mlp_hidden=48", "batch_tokens=96", "span_tokens=0"})
    settings.set(assignment);
  if (preset == "golf-plus")
    for (const char* assignment : {"bigram_buckets=16", "bigram_dim=8"}) settings.set(assignment);
  if (preset == "golf-best") settings.set("rope_dims=4");  // partial RoPE
  for (const std::string& assignment : more) settings.set(assignment);
  return settings.resolve().model;
}

inline Model random_model(const ModelConfig& config, const Context& context, DType dtype = DType::f32) {
  Model model(config, context, dtype);
  std::mt19937 random(29);
  std::normal_distribution<float> normal(0, 0.4f);
  for (float& weight : model.weights()) weight = normal(random);
  model.weights_changed();
  return model;
}

inline std::vector<std::int32_t> random_tokens(std::mt19937& random, const ModelConfig& config,
                                               std::int64_t count) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(count));
  for (std::int32_t& token : tokens)
    token = static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(config.vocab_size));
  return tokens;
}

}  // namespace thimble
