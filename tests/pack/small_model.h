// Small params and weights for tests of packing.
#pragma once

#include <algorithm>
#include <random>
#include <vector>

#include "config/builder.h"
#include "model/params.h"

namespace thimble {

inline Param matrix_param(std::int64_t rows, std::int64_t cols) {
  return {.name = "matrix",
          .dims = {rows, cols},
          .rows = rows,
          .cols = cols,
          .role = Role::query,
          .layer = 0,
          .init = {},
          .group = ParamGroup::matrix,
          .decays = true,
          .control = false,
          .offset = 0};
}

inline Param vector_param(std::int64_t count) {
  Param param = matrix_param(1, count);
  param.name = "vector";
  param.dims = {count};
  return param;
}

inline std::vector<float> random_values(std::int64_t count, float deviation, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 1);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = deviation * normal(random);
  return values;
}

inline ModelConfig small_config(const std::string& preset, const std::vector<std::string>& more = {}) {
  ConfigBuilder settings;
  settings.preset(preset);
  for (const char* assignment :
       {"vocab_size=270", "context=16", "layers=3", "dim=96", "heads=4", "kv_heads=2", "mlp_hidden=112"})
    settings.set(assignment);
  if (preset == "golf-plus")
    for (const char* assignment : {"bigram_buckets=100", "bigram_dim=90"}) settings.set(assignment);
  for (const std::string& assignment : more) settings.set(assignment);
  return resolved(Config{settings.resolve().model, {}}).model;
}

// Gaps between tensors stay 0, as in a model's block.
inline std::vector<float> random_weights(const ParamTable& table, float deviation = 0.1f) {
  std::vector<float> block(static_cast<std::size_t>(table.block_size()));
  unsigned seed = 0;
  for (const Param& param : table.all())
    std::ranges::copy(random_values(param.count(), deviation, ++seed),
                      block.begin() + static_cast<std::ptrdiff_t>(param.offset));
  return block;
}

}  // namespace thimble
