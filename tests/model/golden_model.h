// The published golf models with PyTorch's results, and the tolerances for each device and dtype.
#pragma once

#include <gtest/gtest.h>

#include <cmath>

#include "base/json.h"
#include "config/builder.h"
#include "formats/safetensors.h"
#include "formats/weights_file.h"
#include "model/model.h"
#include "support/golden.h"

namespace thimble {

struct Golden {
  SafetensorsFile file;
  ModelConfig config;
  std::string prefix;

  std::vector<float> floats(std::string_view name) const {
    std::vector<float> values(static_cast<std::size_t>(file.at(name).count()));
    file.read_f32(name, values);
    return values;
  }
  std::vector<std::int32_t> integers(std::string_view name) const {
    std::vector<std::int64_t> wide(static_cast<std::size_t>(file.at(name).count()));
    file.read_i64(name, wide);
    return {wide.begin(), wide.end()};
  }
};

inline Golden open_golf(std::string_view name) {
  SafetensorsFile file = SafetensorsFile::open(golden_path(name));
  const Json golf = parse_json(*file.find_metadata("config"), name);
  ConfigBuilder settings;
  settings.preset("golf");
  const auto set = [&](const char* key, std::int64_t value) {
    settings.set(fmt::format("{}={}", key, value));
  };
  const std::int64_t dim = golf.at("model_dim").as_int();
  set("vocab_size", golf.at("vocab_size").as_int());
  set("layers", golf.at("num_layers").as_int());
  set("dim", dim);
  set("heads", golf.at("num_heads").as_int());
  set("kv_heads", golf.at("num_kv_heads").as_int());
  set("head_dim", dim / golf.at("num_heads").as_int());
  set("rope_dims", dim / golf.at("num_heads").as_int());
  set("mlp_hidden", dim * golf.at("mlp_mult").as_int());
  if (const Json* buckets = golf.find("bigram_vocab_size")) {
    set("bigram_buckets", buckets->as_int());
    set("bigram_dim", golf.at("bigram_dim").as_int());
    settings.set("smear_gate=true");
  }
  return {std::move(file), settings.resolve().model, "param."};
}

struct Agreement {
  double cosine, relative;
};

inline Agreement compare(std::span<const float> ours, std::span<const float> theirs) {
  double dot = 0, a = 0, b = 0, difference = 0;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    const double x = ours[i], y = theirs[i];
    dot += x * y, a += x * x, b += y * y, difference += (x - y) * (x - y);
  }
  return {dot / std::sqrt(a * b), std::sqrt(difference / b)};
}

struct GoldenBounds {
  double loss;      // relative
  double logits;    // absolute
  double cosine;    // of each tensor's gradient
  double relative;  // of each tensor's gradient: |ours - theirs| / |theirs|
  // Tensors with fewer values are too short for a meaningful cosine; only `relative` is checked for
  // them.
  std::size_t fewest_for_cosine = 0;
};

// f32 against f32: a few hundred additions in a different order.
inline constexpr GoldenBounds kF32Bounds{.loss = 1e-5, .logits = 2e-4, .cosine = 0.999999, .relative = 1e-4};
// bf16 has 8 bits: every activation and activation gradient has a relative error of up to 2^-9, and
// about ten of them follow each other in these models. Gradients summed over rows that nearly
// cancel have a larger relative error.
inline constexpr GoldenBounds kBf16Bounds{
    .loss = 0.01, .logits = 0.25, .cosine = 0.99, .relative = 0.15, .fewest_for_cosine = 64};

inline void expect_golden(const Golden& golden, const Context& context, DType dtype,
                          const GoldenBounds& bounds) {
  Model model(golden.config, context, dtype);
  read_state_dict(golden.file, model.params(), golden.prefix, model.weights(), [](std::string_view name) {
    return name.starts_with("grad.") || name == "input" || name == "target" || name == "logits" ||
           name == "loss";
  });
  model.weights_changed();
  const std::int64_t T = golden.file.at("input").dims[1];
  const Rows rows = grid_rows(golden.config, T, golden.integers("input"), golden.integers("target"));
  std::vector<float> gradients(model.weights().size());
  const double loss = model.add_gradients(rows, gradients, {});
  EXPECT_NEAR(loss / golden.floats("loss")[0], 1, bounds.loss);

  const auto logits = golden.floats("logits");
  const Model::Scores scores = model.score(rows, true);
  ASSERT_EQ(scores.logits.size(), logits.size());
  float worst = 0;
  for (std::size_t i = 0; i < logits.size(); ++i)
    worst = std::max(worst, std::abs(logits[i] - scores.logits[i]));
  EXPECT_LE(worst, bounds.logits);

  for (const Param& param : model.params().all()) {
    const auto theirs = golden.floats("grad." + param.name);
    const std::span<const float> ours(gradients.data() + param.offset, theirs.size());
    const auto [cosine, relative] = compare(ours, theirs);
    EXPECT_TRUE(cosine >= bounds.cosine || theirs.size() < bounds.fewest_for_cosine)
        << param.name << " " << cosine;
    EXPECT_LE(relative, bounds.relative) << param.name;
  }
}

}  // namespace thimble
