#include "model/params.h"

#include <cmath>
#include <cstring>
#include <fstream>
#include <set>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/parallel.h"
#include "config/builder.h"
#include "support/golden.h"
#include "support/message_of.h"

namespace thimble {
namespace {

ModelConfig model_of(std::string_view preset, const std::vector<std::string>& assignments = {}) {
  ConfigBuilder settings;
  settings.preset(preset);
  for (const std::string& assignment : assignments) settings.set(assignment);
  return settings.resolve().model;
}

// The golden files' shapes (see their metadata).
ModelConfig golden_baseline() {
  return model_of("golf", {"vocab_size=128", "layers=5", "dim=64", "heads=4", "kv_heads=2"});
}
ModelConfig golden_plus() {
  return model_of("golf-plus", {"vocab_size=128", "layers=4", "dim=96", "heads=6", "kv_heads=3",
                                "mlp_hidden=288", "bigram_buckets=64", "bigram_dim=64"});
}
ModelConfig fixture_llama(std::string_view preset) {
  return model_of(preset, {"vocab_size=320", "layers=3", "dim=64", "heads=4", "kv_heads=2", "mlp_hidden=160",
                           "context=128"});
}

// All presets and a few models with every optional tensor.
std::vector<ModelConfig> many_models() {
  std::vector<ModelConfig> models;
  for (const Preset& preset : all_presets()) models.push_back(model_of(preset.name));
  models.push_back(golden_baseline());
  models.push_back(golden_plus());
  models.push_back(model_of("llama", {"bias=true", "tie_embeddings=false"}));
  models.push_back(model_of(
      "golf-plus",
      {"dim=52", "heads=2", "kv_heads=1", "mlp=swiglu", "norm=layer", "bias=true", "mlp_hidden=37",
       "bigram_dim=7", "q_gain=shared", "position=learned", "tie_embeddings=false", "residual_mix=scalar"}));
  return models;
}

struct SafetensorsHeader {
  Json json;
  std::string data;
};

SafetensorsHeader read_safetensors(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::uint64_t size = 0;
  file.read(reinterpret_cast<char*>(&size), sizeof size);
  std::string header(size, ' ');
  file.read(header.data(), static_cast<std::streamsize>(size));
  return {parse_json(header, path.string()), std::string(std::istreambuf_iterator<char>(file), {})};
}

// Checks that the file and the table contain exactly the same tensors.
void expect_same_tensors(const ModelConfig& model, const std::string& file, const std::string& prefix) {
  const ParamTable table(model);
  const Json header = read_safetensors(golden_path(file)).json;
  std::set<std::string> seen;
  for (const auto& [name, tensor] : header.as_object()) {
    if (name == "__metadata__" || !name.starts_with(prefix)) continue;
    const Param* param = table.find(std::string_view(name).substr(prefix.size()));
    ASSERT_NE(param, nullptr) << name;
    std::vector<std::int64_t> shape;
    for (const Json& dim : tensor.at("shape").as_array()) shape.push_back(dim.as_int());
    EXPECT_EQ(param->dims, shape) << name;
    seen.insert(param->name);
  }
  for (const Param& param : table.all()) EXPECT_TRUE(seen.contains(param.name)) << param.name;
}

TEST(ParamNames, MatchThePublishedGolfFiles) {
  expect_same_tensors(golden_baseline(), "golf_baseline_grad.safetensors", "param.");
}
TEST(ParamNames, MatchThePublishedGolfPlusFiles) {
  expect_same_tensors(golden_plus(), "golf_plus_grad.safetensors", "param.");
}
TEST(ParamNames, MatchTransformersLlama) {
  expect_same_tensors(fixture_llama("llama"), "hf/llama_tied/model.safetensors", "");
}
TEST(ParamNames, MatchTransformersQwen2) {
  expect_same_tensors(fixture_llama("qwen2"), "hf/qwen2/model.safetensors", "");
}

TEST(ParamNames, MatchTransformersForQwen3AndUntiedHeads) {
  const ParamTable table(model_of("qwen3", {"tie_embeddings=false"}));
  ASSERT_NE(table.find("model.layers.8.self_attn.q_norm.weight"), nullptr);
  EXPECT_EQ(table.find("model.layers.8.self_attn.q_norm.weight")->dims, std::vector<std::int64_t>{64});
  ASSERT_NE(table.find("lm_head.weight"), nullptr);
  EXPECT_EQ(table.find("model.layers.9.self_attn.q_norm.weight"), nullptr);
}

TEST(ParamNames, ExtendTheGolfNamesForGpt2Models) {
  const ParamTable table(model_of("microgpt", {"norm=layer", "bias=true", "mlp=gelu", "final_norm=true",
                                               "embed_norm=false", "layers=1", "tie_embeddings=true"}));
  std::set<std::string> names;
  for (const Param& param : table.all()) names.insert(param.name);
  EXPECT_EQ(names, (std::set<std::string>{"tok_emb.weight",
                                          "pos_emb.weight",
                                          "blocks.0.attn_norm.weight",
                                          "blocks.0.attn_norm.bias",
                                          "blocks.0.attn.c_q.weight",
                                          "blocks.0.attn.c_q.bias",
                                          "blocks.0.attn.c_k.weight",
                                          "blocks.0.attn.c_k.bias",
                                          "blocks.0.attn.c_v.weight",
                                          "blocks.0.attn.c_v.bias",
                                          "blocks.0.attn.proj.weight",
                                          "blocks.0.attn.proj.bias",
                                          "blocks.0.mlp_norm.weight",
                                          "blocks.0.mlp_norm.bias",
                                          "blocks.0.mlp.fc.weight",
                                          "blocks.0.mlp.fc.bias",
                                          "blocks.0.mlp.proj.weight",
                                          "blocks.0.mlp.proj.bias",
                                          "final_norm.weight",
                                          "final_norm.bias"}));
}

TEST(Storage, HasEachTensorOnceInOrderAndInsideTheBlock) {
  for (const ModelConfig& model : many_models()) {
    const ParamTable table(model);
    std::int64_t end = 0, count = 0, gaps = 0;
    for (const Param& param : table.all()) {
      EXPECT_GE(param.offset, end) << param.name;
      gaps += param.offset - end;
      end = param.offset + param.count();
      count += param.count();
      EXPECT_EQ(table.find(param.name), &param);
      const ParamView view = table.view(param.role, std::max(param.layer, 0));
      EXPECT_EQ(view, (ParamView{param.offset, param.rows, param.cols})) << param.name;
    }
    EXPECT_LE(end, table.block_size());
    EXPECT_LT(gaps, 16 * static_cast<std::int64_t>(table.all().size()));
    EXPECT_EQ(table.count(), count);
    EXPECT_EQ(table.block_size() % 16, 0);
    std::int64_t in_groups = 0;
    for (int group = 0; group < kParamGroups; ++group)
      in_groups += table.count(static_cast<ParamGroup>(group));
    EXPECT_EQ(in_groups, count);
  }
}

TEST(Storage, StartsEveryGroupAtACacheLine) {
  const auto is_joined = [](Role role) {
    return role == Role::key || role == Role::value || role == Role::mlp_up || role == Role::key_bias ||
           role == Role::value_bias || role == Role::mlp_up_bias;
  };
  for (const ModelConfig& model : many_models()) {
    const ParamTable table(model);
    for (const Param& param : table.all())
      EXPECT_TRUE(is_joined(param.role) || param.offset % 16 == 0) << param.name;
  }
}

TEST(Storage, LayersOfARoleHaveAConstantStride) {
  for (const ModelConfig& model : many_models()) {
    const ParamTable table(model);
    for (const Param& param : table.all()) {
      if (param.layer < 1) continue;
      EXPECT_EQ(param.offset - table.view(param.role, param.layer - 1).offset, table.stride(param.role));
    }
  }
}

TEST(Storage, GroupsAreOneMatrix) {
  const ModelConfig model =
      model_of("qwen2", {"bias=true", "dim=72", "heads=6", "kv_heads=3", "mlp_hidden=50"});
  const ParamTable table(model);
  for (int layer = 0; layer < model.layers; ++layer) {
    const ParamView q = table.view(Role::query, layer), k = table.view(Role::key, layer),
                    v = table.view(Role::value, layer);
    EXPECT_EQ(table.qkv(layer), (ParamView{q.offset, 72 + 36 + 36, 72}));
    EXPECT_EQ(k.offset, q.offset + q.count());
    EXPECT_EQ(v.offset, k.offset + k.count());
    EXPECT_EQ(table.view(Role::value_bias, layer).offset,
              table.view(Role::query_bias, layer).offset + 72 + 36);
    EXPECT_EQ(table.qkv_bias(layer), (ParamView{table.view(Role::query_bias, layer).offset, 1, 144}));
    EXPECT_EQ(table.mlp_in(layer), (ParamView{table.view(Role::mlp_gate, layer).offset, 100, 72}));
    EXPECT_EQ(table.view(Role::mlp_up, layer).offset, table.view(Role::mlp_gate, layer).offset + 50 * 72);
    EXPECT_EQ(table.mlp_in_bias(layer).cols, 100);
  }
}

TEST(Storage, AbsentTensorsAreEmptyViewsAndATiedHeadIsTheEmbedding) {
  const ParamTable llama(model_of("llama")), golf(golden_plus());
  EXPECT_FALSE(llama.q_gain(0));
  EXPECT_FALSE(llama.resid_mix(0));
  EXPECT_FALSE(llama.skip_weight(0));
  EXPECT_FALSE(llama.qkv_bias(0));
  EXPECT_FALSE(golf.attn_norm(0));
  EXPECT_EQ(llama.head(), llama.token_embedding());
  EXPECT_EQ(golf.mlp_in(1).rows, 288);
  EXPECT_EQ(golf.resid_mix(3).rows, 2);
  EXPECT_EQ(golf.skip_weight(1), (ParamView{golf.view(Role::skip_weights).offset + 96, 1, 96}));
  EXPECT_EQ(golf.bigram_scale(), (ParamView{golf.find("bigram.scale")->offset, 1, 1}));
  const ParamTable untied(model_of("llama", {"tie_embeddings=false"}));
  EXPECT_NE(untied.head(), untied.token_embedding());
}

TEST(Groups, MatchTheOptimizersOfTheGolfScripts) {
  const ParamTable table(golden_plus());
  const auto group = [&](std::string_view name) { return table.find(name)->group; };
  EXPECT_EQ(group("tok_emb.weight"), ParamGroup::embedding);
  EXPECT_EQ(group("bigram.embed.weight"), ParamGroup::embedding);
  EXPECT_EQ(group("bigram.proj.weight"), ParamGroup::matrix);
  EXPECT_EQ(group("blocks.0.mlp.proj.weight"), ParamGroup::matrix);
  for (const char* name :
       {"smear.gate", "bigram.scale", "skip_weights", "blocks.0.resid_mix", "blocks.0.attn.q_gain"}) {
    EXPECT_EQ(group(name), ParamGroup::scalar) << name;
    EXPECT_TRUE(table.find(name)->control) << name;
    EXPECT_TRUE(table.find(name)->decays) << name;  // the record's AdamW decays all groups
  }
  EXPECT_FALSE(table.find("blocks.0.mlp.proj.weight")->control);
  const ParamTable llama(model_of("qwen2", {"tie_embeddings=false"}));
  EXPECT_EQ(llama.find("lm_head.weight")->group, ParamGroup::head);
  EXPECT_FALSE(llama.find("model.norm.weight")->decays);
  EXPECT_FALSE(llama.find("model.layers.0.self_attn.q_proj.bias")->decays);
  EXPECT_TRUE(llama.find("model.layers.0.self_attn.q_proj.weight")->decays);
}

std::vector<float> initialized(const ParamTable& table, std::uint64_t seed = 1) {
  std::vector<float> block(static_cast<std::size_t>(table.block_size()), 7.0f);
  initialize(table, seed, block);
  return block;
}

std::span<const float> values_of(const std::vector<float>& block, const Param& param) {
  return std::span(block).subspan(static_cast<std::size_t>(param.offset),
                                  static_cast<std::size_t>(param.count()));
}

struct Moments {
  double mean = 0, deviation = 0, largest = 0;
};

Moments moments_of(std::span<const float> values) {
  double sum = 0, squares = 0, largest = 0;
  for (float value : values) {
    sum += value;
    squares += static_cast<double>(value) * value;
    largest = std::max(largest, std::abs(static_cast<double>(value)));
  }
  const double count = static_cast<double>(values.size()), mean = sum / count;
  return {mean, std::sqrt(std::max(0.0, squares / count - mean * mean)), largest};
}

// Compares each tensor with the initial values of the published script: the same mean and deviation
// and, if uniform or constant, the same bounds.
void expect_init_like(const ModelConfig& model, const std::string& file) {
  const SafetensorsHeader golden = read_safetensors(golden_path(file));
  const ParamTable table(model);
  const std::vector<float> block = initialized(table);
  for (const Param& param : table.all()) {
    const Json& tensor = golden.json.at("init." + param.name);
    const auto begin = tensor.at("data_offsets").as_array()[0].as_uint();
    std::vector<float> theirs(static_cast<std::size_t>(param.count()));
    std::memcpy(theirs.data(), golden.data.data() + begin, theirs.size() * sizeof(float));
    const Moments expected = moments_of(theirs), found = moments_of(values_of(block, param));
    const double noise = 5 * expected.deviation / std::sqrt(static_cast<double>(param.count()));
    EXPECT_NEAR(found.mean, expected.mean, 1e-6 + noise) << param.name;
    EXPECT_NEAR(found.deviation, expected.deviation, 1e-6 + noise) << param.name;
    const bool bounded = param.init.kind == Init::Kind::uniform || param.init.kind == Init::Kind::constant;
    EXPECT_TRUE(!bounded || std::abs(found.largest - expected.largest) <= 1e-6 + 0.01 * expected.largest)
        << param.name;
  }
}

TEST(Initialize, HasTheDistributionOfThePublishedScript) {
  expect_init_like(golden_baseline(), "golf_baseline_train.safetensors");
}
TEST(Initialize, HasTheDistributionOfThePublishedRecord) {
  expect_init_like(golden_plus(), "golf_plus_train.safetensors");
}

TEST(Initialize, NormalScalesOutputProjectionsByDepth) {
  const ParamTable table(model_of("microgpt"));
  const std::vector<float> block = initialized(table);
  const auto deviation = [&](std::string_view name) {
    return moments_of(values_of(block, *table.find(name))).deviation;
  };
  EXPECT_NEAR(deviation("tok_emb.weight"), 0.08, 0.001);
  EXPECT_NEAR(deviation("pos_emb.weight"), 0.08, 0.003);
  EXPECT_NEAR(deviation("lm_head.weight"), 0.08, 0.001);
  EXPECT_NEAR(deviation("blocks.1.mlp.fc.weight"), 0.08, 0.003);
  EXPECT_NEAR(deviation("blocks.1.mlp.proj.weight"), 0.08 / 2, 0.002);  // sqrt(2 x 2 layers)
  EXPECT_NEAR(deviation("blocks.0.attn.proj.weight"), 0.08 / 2, 0.002);
}

TEST(Initialize, OrthogonalMatricesAreOrthogonal) {
  const ParamTable table(golden_plus());
  const std::vector<float> block = initialized(table);
  for (const char* name : {"blocks.0.attn.c_q.weight", "blocks.3.mlp.fc.weight", "bigram.proj.weight"}) {
    const Param& param = *table.find(name);
    ASSERT_EQ(param.init.kind, Init::Kind::orthogonal) << name;
    const auto values = values_of(block, param);
    const auto cols = static_cast<std::size_t>(param.cols), rows = static_cast<std::size_t>(param.rows);
    ASSERT_GE(rows, cols);  // so columns are orthogonal
    double worst = 0;
    for (std::size_t a = 0; a < cols; ++a)
      for (std::size_t b = 0; b <= a; ++b) {
        double sum = 0;
        for (std::size_t r = 0; r < rows; ++r)
          sum += static_cast<double>(values[r * cols + a]) * static_cast<double>(values[r * cols + b]);
        const double expected = a == b ? param.init.value * param.init.value : 0;
        worst = std::max(worst, std::abs(sum - expected));
      }
    EXPECT_LT(worst, 1e-6) << name;
  }
  EXPECT_NEAR(table.find("bigram.proj.weight")->init.value, 1 / std::sqrt(8.0), 1e-12);
  EXPECT_EQ(table.find("blocks.0.attn.c_k.weight")->init.kind, Init::Kind::uniform);  // 48 rows: too small
}

TEST(Initialize, DependsOnlyOnSeedAndName) {
  const ParamTable small(
      model_of("golf-plus", {"layers=2", "dim=128", "heads=2", "kv_heads=1", "mlp_hidden=64"}));
  const ParamTable deep(
      model_of("golf-plus", {"layers=5", "dim=128", "heads=2", "kv_heads=1", "mlp_hidden=64"}));
  const std::vector<float> a = initialized(small), b = initialized(deep), c = initialized(small, 2);
  const auto of = [](const std::vector<float>& block, const ParamTable& table, std::string_view name) {
    const auto values = values_of(block, *table.find(name));
    return std::vector<float>(values.begin(), values.end());
  };
  for (const char* name : {"blocks.1.attn.c_q.weight", "blocks.1.mlp.fc.weight", "tok_emb.weight"}) {
    EXPECT_EQ(of(a, small, name), of(b, deep, name)) << name;
    EXPECT_NE(of(a, small, name), of(c, small, name)) << name;
  }
  EXPECT_NE(of(a, small, "blocks.0.attn.c_q.weight"), of(a, small, "blocks.1.attn.c_q.weight"));
}

TEST(Initialize, GivesTheSameBitsForAnyNumberOfThreads) {
  const ParamTable table(golden_plus());
  const int before = max_threads();
  set_threads(1);
  const std::vector<float> one = initialized(table);
  set_threads(3);
  const std::vector<float> three = initialized(table);
  set_threads(before);
  EXPECT_EQ(one, three);
}

TEST(Initialize, ZeroesGapsAndRejectsAWrongBlockSize) {
  const ParamTable table(golden_baseline());
  std::vector<float> block = initialized(table);
  for (const Param& param : table.all()) std::fill_n(block.begin() + param.offset, param.count(), 0.0f);
  EXPECT_EQ(std::count(block.begin(), block.end(), 0.0f), table.block_size());
  block.pop_back();
  EXPECT_THROW(initialize(table, 1, block), Error);
}

// The numbers of tests/golden/make_rope_scaling.py.
TEST(RopeScaling, YarnAndLongropeAreAsPublished) {
  const Json cases = parse_json(read_file(golden_path("rope_scaling.json"), 1 << 20), "rope_scaling.json");
  EXPECT_EQ(cases.size(), 7u);
  for (const Json& one : cases.as_array()) {
    std::vector<std::string> settings = {"heads=1", "kv_heads=1", "dim=128", "head_dim=128"};
    for (const Json& setting : one.at("settings").as_array()) settings.push_back(setting.as_string());
    const ModelConfig config = model_of("llama", settings);
    const std::vector<double> found = rope_frequencies(config, false);
    const Json::Array& expected = one.at("frequencies").as_array();
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t i = 0; i < found.size(); ++i)
      EXPECT_NEAR(found[i] / expected[i].as_double(), 1, 1e-12) << one.dump() << i;
    EXPECT_NEAR(rope_attention_factor(config, false), one.at("attention").as_double(), 1e-12);
  }
  EXPECT_EQ(rope_attention_factor(model_of("llama", {"rope_scaling=linear", "rope_factor=4"}), false), 1);
}

TEST(RopeScaling, LongropeNeedsAFactorForEachPair) {
  const auto with = [](const std::string& factors) {
    return model_of("llama", {"rope_scaling=longrope", "rope_dims=4", "rope_long_factors=1,2",
                              "rope_short_factors=" + factors});
  };
  EXPECT_EQ(with("1,1.5").rope_short_factors, "1,1.5");
  for (const char* wrong : {"", "1", "1,2,3", "1,0", "1,-1"})
    EXPECT_NE(message_of([&] { with(wrong); }).find("rope_short_factors must be 2 positive numbers"),
              std::string::npos)
        << wrong;
  EXPECT_NE(message_of([&] { with("1,x"); }).find("rope_short_factors expects numbers, separated by commas"),
            std::string::npos);
}

}  // namespace
}  // namespace thimble
