#include "config/builder.h"

#include <cmath>

#include "base/error.h"
#include "config/toml.h"
#include "model/depth.h"
#include "model/params.h"
#include "train/run_cost.h"

namespace thimble {
namespace {

Config preset_config(std::string_view name) {
  ConfigBuilder settings;
  settings.preset(name);
  return settings.resolve();
}

std::int64_t parameters_of(std::string_view name) {
  return ParamTable(preset_config(name).model).count();
}

TEST(Presets, HaveTheExpectedNames) {
  std::vector<std::string> names;
  for (const Preset& preset : all_presets()) names.push_back(preset.name);
  EXPECT_EQ(names, (std::vector<std::string>{"chat", "export", "golf", "golf-best", "golf-mlx", "golf-plus",
                                             "llama", "microgpt", "quick", "qwen2", "qwen3"}));
}

TEST(Presets, ResolveHaveASummaryAndRoundTripAsToml) {
  for (const Preset& preset : all_presets()) {
    SCOPED_TRACE(preset.name);
    EXPECT_TRUE(preset.text.starts_with("# "));
    EXPECT_GT(preset.summary.size(), 20u);
    const Config config = preset_config(preset.name);
    EXPECT_TRUE(config_from_toml(to_toml(config), "config.toml") == config);
  }
}

TEST(Presets, AnUnknownNameSuggestsTheNearest) {
  try {
    find_preset("golf-plsu");
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "unknown preset 'golf-plsu'");
    EXPECT_EQ(error.hint(), "did you mean golf-plus?");
  }
}

// Counts published by parameter-golf; microgpt: 2 V E + T E + 12 L E^2.
TEST(Presets, HaveThePublishedParameterCounts) {
  EXPECT_EQ(parameters_of("golf"), 17059912);
  EXPECT_EQ(parameters_of("golf-mlx"), 17059912);
  EXPECT_EQ(parameters_of("golf-plus"), 22368841);
  EXPECT_EQ(parameters_of("microgpt"), 2 * 4096 * 64 + 256 * 64 + 12 * 2 * 64 * 64);
}

TEST(Presets, GolfHasTheConstantsOfTheScript) {
  const Config golf = preset_config("golf");
  EXPECT_EQ(static_cast<float>(golf.model.norm_eps), std::numeric_limits<float>::epsilon());
  EXPECT_EQ(golf.model.rope_direction, -1);
  EXPECT_EQ(golf.model.mlp_hidden, 1024);
  EXPECT_EQ(golf.optimizer.rate(ParamGroup::embedding), 0.05);
  EXPECT_EQ(golf.optimizer.rate(ParamGroup::matrix), 0.04);
  EXPECT_EQ(golf.optimizer.rate(ParamGroup::scalar), 0.04);
  EXPECT_EQ(golf.train.span_tokens, 65536);
  EXPECT_EQ(golf.train.seed, 1337);
  EXPECT_EQ(golf.optimizer.clip, 0);
  EXPECT_EQ(golf.optimizer.weight_decay, 0);

  const Config mlx = preset_config("golf-mlx");
  EXPECT_EQ(mlx.model.norm_eps, 1e-6);
  EXPECT_EQ(mlx.model.rope_direction, 1);
  EXPECT_EQ(mlx.train.span_tokens, 8192);
  EXPECT_EQ(mlx.optimizer.muon_dtype, MuonDType::f32);
}

TEST(Presets, ExportUsesOnlyFeaturesOfLlamaCpp) {
  const ModelConfig model = preset_config("export").model;
  EXPECT_NE(model.residual_mix, MixKind::channel);
  EXPECT_FALSE(model.unet_skips);
  EXPECT_EQ(model.logit_softcap, 0);
  EXPECT_EQ(model.bigram_buckets, 0);
  EXPECT_FALSE(model.smear_gate);
  EXPECT_EQ(model.rope_dims, model.head_dim);
}

TEST(Presets, LlamaModelsUseTransformersNamesAndGolfModelsTheirOwn) {
  for (const char* name : {"llama", "qwen2", "qwen3", "quick", "chat"})
    EXPECT_TRUE(uses_transformers_names(preset_config(name).model)) << name;
  for (const char* name : {"golf", "golf-best", "golf-mlx", "golf-plus", "export", "microgpt"})
    EXPECT_FALSE(uses_transformers_names(preset_config(name).model)) << name;
}

TEST(Depth, OfThePresetChangesNothing) {
  for (const char* name :
       {"golf", "golf-best", "golf-mlx", "golf-plus", "export", "llama", "qwen2", "qwen3", "quick", "chat"}) {
    ConfigBuilder settings;
    settings.preset(name);
    const Config before = settings.resolve();
    const auto lines = apply_depth(settings, before.model.layers);
    EXPECT_GE(lines.size(), 8u);
    EXPECT_TRUE(settings.resolve() == before) << name << "\n" << to_toml(settings.resolve());
  }
}

TEST(Depth, EveryDepthIsAValidModelThatGrows) {
  for (const char* name : {"golf", "llama"}) {
    std::int64_t last = 0;
    for (int depth = 1; depth <= 32; ++depth) {
      ConfigBuilder settings;
      settings.preset(name);
      apply_depth(settings, depth);
      const Config config = settings.resolve();
      EXPECT_EQ(config.model.layers, depth);
      EXPECT_EQ(config.model.head_dim, 64);
      EXPECT_EQ(config.model.heads, 2 * config.model.kv_heads);
      const std::int64_t count = ParamTable(config.model).count();
      EXPECT_GT(count, last) << name << " " << depth;
      last = count;
    }
  }
}

TEST(Depth, KeepsGivenValuesAndDerivesOthersFromThem) {
  ConfigBuilder settings;
  settings.preset("golf");
  settings.set("dim=256");
  settings.set("lr=0.01");
  settings.set("batch_tokens=65536");
  const auto lines = apply_depth(settings, 12);
  const Config config = settings.resolve();
  EXPECT_EQ(config.model.layers, 12);
  EXPECT_EQ(config.model.dim, 256);
  EXPECT_EQ(config.model.heads, 4);
  EXPECT_EQ(config.model.mlp_hidden, 512);
  EXPECT_EQ(config.train.batch_tokens, 65536);
  EXPECT_EQ(config.optimizer.rate(ParamGroup::matrix), 0.01);
  EXPECT_EQ(config.optimizer.rate(ParamGroup::embedding), 0.01) << "the lr given is that of every group";
  EXPECT_EQ(lines[1], "dim = 256: given");
}

TEST(Depth, ScalesTheRatesWithBatchAndWidth) {
  ConfigBuilder settings;
  settings.preset("golf");
  settings.set("dim=256");
  settings.set("batch_tokens=65536");
  apply_depth(settings, 12);
  // From the preset's embedding rate, with 1/8 of the batch and half the width.
  EXPECT_NEAR(settings.resolve().optimizer.rate(ParamGroup::embedding),
              0.05 * std::sqrt(1.0 / 8) * std::sqrt(2.0), 1e-4);
}

TEST(Depth, IsRejectedWithLearnedPositions) {
  ConfigBuilder settings;
  settings.preset("microgpt");
  EXPECT_THROW(apply_depth(settings, 4), Error);
}

// Published for the baseline: about 131 MFLOP per token (6 N + causal attention).
TEST(Summary, CountsTheFlopsOfGolf) {
  const Summary s = summarize(preset_config("golf"));
  EXPECT_EQ(s.forward_flops_per_token, 2.0 * (9 * 1835008 + 524288) + 9.0 * 2 * 512 * 1025);
  EXPECT_NEAR(s.training_flops_per_token, 131e6, 1e6);
}

TEST(Summary, CountsTheMemoryOfEachOptimizer) {
  const Config golf = preset_config("golf");
  const Summary s = summarize(golf);
  const std::int64_t matrices = 9 * 1835008, rest = 17059912 - matrices;
  EXPECT_EQ(s.optimizer_bytes, 4 * matrices + 8 * rest);
  EXPECT_GE(s.weight_bytes, 4 * 17059912);
  EXPECT_LT(s.weight_bytes, 4 * (17059912 + 16 * s.tensors));
  EXPECT_LT(s.plan.arena_bytes, s.plan.activation_bytes + s.plan.gradient_bytes + s.plan.scratch_bytes)
      << "reuse saves something";
}

}  // namespace
}  // namespace thimble
