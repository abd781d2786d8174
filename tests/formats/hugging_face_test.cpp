// Reading Hugging Face folders: config.json, weights, and what is rejected.
#include "formats/hugging_face.h"

#include <functional>
#include <set>

#include "base/error.h"
#include "formats/sample_folders.h"
#include "support/message_of.h"
#include "support/temp_folder.h"

namespace thimble {
namespace {

namespace fs = std::filesystem;

std::string parse_message(const Json& config) {
  return message_of([&] { parse_hugging_face_config(config.dump(), "config.json"); });
}

HuggingFaceConfig parsed(const Json& config) {
  return parse_hugging_face_config(config.dump(), "config.json");
}

// config.json

TEST(HuggingFaceConfig, ReadsRopeOfTransformers4And5) {
  const Json four = sample_llama("llama", true).config;
  Json five = Json::object();
  for (const auto& [key, value] : four.as_object())
    if (key != "rope_theta") five.set(key, value);
  five.set("rope_parameters", Json::object().set("rope_theta", 500.0).set("rope_type", "default"));
  five.set("dtype", "float32");
  EXPECT_EQ(parsed(four).model.rope_base, 500);
  EXPECT_EQ(parsed(five).model, parsed(four).model);
  Json both = five;
  both.set("rope_theta", 10000.0);
  EXPECT_EQ(parse_message(both),
            "config.json: rope_parameters.rope_theta (500) differs from rope_theta (10000)");
}

TEST(HuggingFaceConfig, AbsentKeysHaveTransformersDefaults) {
  const auto without = [](const std::string& type, std::set<std::string> keys) {
    const Json whole = sample_llama(type, true).config;
    Json config = Json::object();
    for (const auto& [key, value] : whole.as_object())
      if (!keys.contains(key)) config.set(key, value);
    return parsed(config).model;
  };
  EXPECT_FALSE(without("llama", {"tie_word_embeddings"}).tie_embeddings);
  EXPECT_EQ(without("llama", {"num_key_value_heads"}).kv_heads, 6);
  EXPECT_EQ(without("llama", {"rope_theta"}).rope_base, 10000);
  EXPECT_EQ(without("llama", {"rms_norm_eps"}).norm_eps, 1e-6);
  EXPECT_EQ(without("qwen3", {"head_dim"}).head_dim, 128);
  EXPECT_TRUE(parsed(sample_gpt2().config).model.tie_embeddings);
  EXPECT_EQ(parsed(sample_gpt2().config).model.mlp_hidden, 48);
}

TEST(HuggingFaceConfig, IgnoresHarmlessKeys) {
  Json config = sample_llama("qwen2", true).config;
  const ModelConfig before = parsed(config).model;
  config.set("use_cache", true).set("attention_dropout", 0.1).set("initializer_range", 0.02);
  config.set("sliding_window", 4096).set("use_sliding_window", false).set("max_window_layers", 28);
  config.set("layer_types", Json::array({"full_attention", "full_attention"}));
  config.set("rope_scaling", nullptr).set("something_new", nullptr).set("pad_token_id", 3);
  EXPECT_EQ(parsed(config).model, before);
}

TEST(HuggingFaceConfig, RejectsUnsupportedSettingsByName) {
  struct Case {
    const char *type, *key;
    Json value;
    std::string message;
  };
  const std::vector<Case> cases = {
      {"llama", "hidden_act", "gelu", "hidden_act is \"gelu\", expected \"silu\" or \"swish\""},
      {"llama", "rope_scaling", Json::object().set("type", "dynamic").set("factor", 2.0),
       "rope_scaling.type is \"dynamic\", expected \"default\" or \"linear\" or \"llama3\" or \"yarn\"; "
       "rope_scaling.factor is not supported"},
      {"llama", "rope_parameters", Json::object().set("rope_type", "yarn"),
       "rope_parameters.factor is missing"},
      {"llama", "rope_parameters",
       Json::object().set("rope_type", "yarn").set("factor", 4.0).set("mscale", 1.0),
       "rope_parameters.mscale is not supported"},
      {"llama", "rope_scaling", Json::object().set("type", "longrope"),
       "rope_scaling.type is \"longrope\", expected \"default\" or \"linear\" or \"llama3\" or \"yarn\"; "
       "rope_scaling.short_factor is missing; rope_scaling.long_factor is missing"},
      {"llama", "rope_parameters", Json::object().set("partial_rotary_factor", 0.5),
       "rope_parameters.partial_rotary_factor is 0.5, expected 1.0 or 1"},
      {"llama", "sliding_window", 4096,
       "nothing was thrown"},  // llama has no windows; Transformers ignores the key
      {"qwen3", "layer_types", Json::array({"full_attention", "sliding_attention"}),
       "layer_types is [\"full_attention\",\"sliding_attention\"], expected \"full_attention\" for every "
       "layer"},  // without a window
      {"qwen2", "attention_bias", true, "attention_bias is not supported"},
      {"qwen3", "mlp_bias", true, "mlp_bias is not supported"},
      {"llama", "quantization_config", Json::object(), "quantization_config is not supported"},
      {"llama", "auto_map", Json::object(), "auto_map is not supported"},
      {"llama", "vocab_size", 2.5, "vocab_size is 2.5, expected a whole number"},
      {"llama", "hidden_size", nullptr, "hidden_size is missing"},
      {"llama", "head_dim", 3, "head_dim must be even for RoPE, found 3"},
      {"llama", "bos_token_id", "<s>", "bos_token_id is \"<s>\", expected a token id"},
      {"llama", "model_type", "mamba",
       "expected model_type llama, mistral, qwen2, qwen3, smollm3, phi3, "
       "gemma2, gemma3_text, gpt2, found \"mamba\""},
      {"gpt2", "activation_function", "gelu",
       "activation_function is \"gelu\", expected \"gelu_new\" or \"gelu_pytorch_tanh\""},
      {"gpt2", "scale_attn_by_inverse_layer_idx", true,
       "scale_attn_by_inverse_layer_idx is true, expected false"},
      {"gpt2", "add_cross_attention", true, "add_cross_attention is true, expected false"},
  };
  for (const Case& one : cases) {
    Json config =
        std::string(one.type) == "gpt2" ? sample_gpt2().config : sample_llama(one.type, true).config;
    config.set(one.key, one.value);
    const std::string expected =
        one.message == "nothing was thrown" ? one.message : "config.json: " + one.message;
    EXPECT_EQ(parse_message(config), expected) << one.key;
  }
}

TEST(HuggingFaceConfig, ReadsWindows) {
  Json config = sample_llama("qwen2", true).config;
  config.set("use_sliding_window", true).set("sliding_window", 16);
  EXPECT_FALSE(parsed(config).model.is_local(1));  // max_window_layers: no layer by default
  config.set("max_window_layers", 1);
  EXPECT_FALSE(parsed(config).model.is_local(0));
  EXPECT_TRUE(parsed(config).model.is_local(1));
  config.set("layer_types", Json::array({"sliding_attention", "full_attention"}));
  EXPECT_EQ(parse_message(config),
            "config.json: layer_types is [\"sliding_attention\",\"full_attention\"], expected a period of "
            "layers that thimble's window settings can express");
  config.set("layer_types", Json::array({"full_attention", "chunked_attention"}));
  EXPECT_EQ(parse_message(config),
            "config.json: layer_types is [\"full_attention\",\"chunked_attention\"], expected "
            "\"full_attention\" or \"sliding_attention\" for every layer");
  Json llama = sample_llama("llama", true).config;
  llama.set("use_sliding_window", true).set("sliding_window", 16);
  EXPECT_EQ(parse_message(llama),
            "config.json: sliding_window is 16, expected null, or use_sliding_window false");
}

// The keys of the published config.json files of Llama 3.2, SmolLM 3, Gemma 2 and 3 and Phi-3, with
// other sizes.
TEST(HuggingFaceConfig, ReadsKeysOfTransformers4) {
  const auto sizes = [](const char* type) {
    return Json::object()
        .set("model_type", type)
        .set("vocab_size", 64)
        .set("hidden_size", 32)
        .set("intermediate_size", 48)
        .set("num_hidden_layers", 12)
        .set("num_attention_heads", 4)
        .set("num_key_value_heads", 2)
        .set("max_position_embeddings", 8192);
  };
  Json llama = sizes("llama");
  llama.set("rope_theta", 500000.0)
      .set("rope_scaling", Json::object()
                               .set("factor", 32.0)
                               .set("high_freq_factor", 4.0)
                               .set("low_freq_factor", 1.0)
                               .set("original_max_position_embeddings", 8192)
                               .set("rope_type", "llama3"));
  const ModelConfig scaled = parsed(llama).model;
  EXPECT_EQ(scaled.rope_scaling, RopeScaling::llama3);
  EXPECT_EQ(scaled.rope_factor, 32);
  EXPECT_EQ(scaled.rope_base, 500000);

  Json smollm = sizes("smollm3");
  Json rope = Json::array();
  for (int layer = 0; layer < 12; ++layer) rope.push(layer % 4 == 3 ? 0 : 1);
  smollm.set("no_rope_layer_interval", 4).set("no_rope_layers", rope).set("use_sliding_window", false);
  smollm.set("max_window_layers", 28).set("mlp_bias", false).set("pretraining_tp", 2);
  EXPECT_EQ(parsed(smollm).model.nope_every, 4);
  EXPECT_EQ(parsed(smollm).model.rope_base, 2e6);
  Json irregular = Json::array();
  for (int layer = 0; layer < 12; ++layer) irregular.push(layer % 5 == 3 ? 0 : 1);
  smollm.set("no_rope_layers", irregular);
  EXPECT_NE(parse_message(smollm).find("0 for every n-th layer"), std::string::npos);

  Json gemma2 = sizes("gemma2");
  gemma2.set("hidden_act", "gelu_pytorch_tanh").set("hidden_activation", "gelu_pytorch_tanh");
  gemma2.set("head_dim", 16).set("query_pre_attn_scalar", 224).set("sliding_window", 4096);
  gemma2.set("attn_logit_softcapping", 50.0).set("final_logit_softcapping", 30.0);
  gemma2.set("cache_implementation", "hybrid").set("sliding_window_size", 4096);
  const ModelConfig capped = parsed(gemma2).model;
  EXPECT_EQ(capped.global_every, 2);
  EXPECT_EQ(capped.query_scalar, 224);
  EXPECT_TRUE(capped.tie_embeddings);

  Json gemma3 = sizes("gemma3_text");
  gemma3.set("head_dim", 16).set("query_pre_attn_scalar", 256).set("sliding_window", 512);
  gemma3.set("rope_theta", 1000000).set("rope_local_base_freq", 10000).set("rope_scaling", nullptr);
  gemma3.set("sliding_window_pattern", 6).set("final_logit_softcapping", nullptr);
  const ModelConfig local = parsed(gemma3).model;
  EXPECT_EQ(local.global_every, 6);
  EXPECT_EQ(local.local_rope_base, 10000);
  EXPECT_EQ(local.rope_base, 1e6);
  EXPECT_EQ(local.logit_softcap, 0);

  Json phi = sizes("phi3");
  phi.set("auto_map", Json::object()).set("original_max_position_embeddings", 4096);
  phi.set("sliding_window", 2047).set("rope_scaling", nullptr).set("rope_theta", 10000.0);
  EXPECT_EQ(parsed(phi).model.window, 2047);
  EXPECT_TRUE(parsed(phi).model.is_local(0));
  phi.set("partial_rotary_factor", 0.5);
  EXPECT_EQ(parsed(phi).model.rope_dims, 4);
}

TEST(HuggingFaceConfig, ListsAllProblems) {
  Json config = sample_llama("llama", true).config;
  config.set("hidden_act", "relu").set("alibi", true).set("num_hidden_layers", "2");
  EXPECT_EQ(
      parse_message(config),
      "config.json: num_hidden_layers is \"2\", expected a whole number; hidden_act is \"relu\", expected "
      "\"silu\" or \"swish\"; alibi is not supported");
}

TEST(HuggingFaceConfig, TruncatedConfigIsAnError) {
  const std::string whole = sample_llama("qwen3", false).config.dump(2);
  for (std::size_t bytes = 0; bytes < whole.size(); ++bytes)
    EXPECT_THROW(parse_hugging_face_config(whole.substr(0, bytes), "config.json"), Error) << bytes;
  EXPECT_EQ(message_of([] { parse_hugging_face_config("[]", "config.json"); }),
            "config.json: expected an object of settings");
}

TEST(HuggingFaceConfig, ReadsSpecialTokens) {
  Json config = sample_llama("llama", true).config;
  config.set("bos_token_id", 1).set("eos_token_id", Json::array({2, 5}));
  EXPECT_EQ(parsed(config).special.bos, 1);
  EXPECT_EQ(parsed(config).special.eos, 2);
  config.set("bos_token_id", 50256).set("eos_token_id", nullptr);
  EXPECT_EQ(parsed(config).special.bos, std::nullopt);
  EXPECT_EQ(parsed(config).special.eos, std::nullopt);
}

// Weights

TEST(HuggingFaceFolder, ShardsGiveTheSameModelAsOneFile) {
  const TempFolder folder;
  for (const bool tied : {true, false}) {
    const SampleFolder sample = sample_llama("qwen3", tied);
    write_folder(folder / "one", sample);
    write_folder(folder / "many", sample, 3);
    const ModelFile one = open_model(folder / "one"), many = open_model(folder / "many");
    EXPECT_EQ(one.weights, many.weights);
    EXPECT_EQ(one.tensors.size(), many.tensors.size());
    EXPECT_EQ(one.config.model.tie_embeddings, tied);
    EXPECT_EQ(one.architecture, "qwen3");
  }
}

TEST(HuggingFaceFolder, MissingShardsAreListed) {
  const TempFolder folder;
  write_folder(folder.path(), sample_llama("llama", true), 3);
  fs::remove(folder / "model-00001-of-00003.safetensors");
  fs::remove(folder / "model-00003-of-00003.safetensors");
  EXPECT_EQ(message_of([&] { open_model(folder.path()); }),
            folder.path().string() +
                ": model-00001-of-00003.safetensors is missing; model-00003-of-00003.safetensors is missing");
}

TEST(HuggingFaceFolder, ShardWithoutItsTensorIsNamed) {
  const TempFolder folder;
  const SampleFolder sample = sample_llama("llama", true);
  write_folder(folder.path(), sample, 2);
  SampleTensors first = {{"model.embed_tokens.weight", sample.tensors.at("model.embed_tokens.weight")}};
  write_tensors(folder / "model-00001-of-00002.safetensors", first);
  const std::string message = message_of([&] { open_model(folder.path()); });
  EXPECT_NE(message.find("model.layers.0.mlp.down_proj.weight is not in model-00001-of-00002.safetensors"),
            message.npos)
      << message;
}

TEST(HuggingFaceFolder, IndexCannotNameFilesOutsideTheFolder) {
  const TempFolder folder;
  write_folder(folder.path(), sample_llama("llama", true));
  fs::remove(folder / "model.safetensors");
  for (const char* name : {"../model.safetensors", "/etc/passwd", "..", ""}) {
    const Json map = Json::object().set("x", name);
    folder.write("model.safetensors.index.json", Json::object().set("weight_map", map).dump());
    const std::string message = message_of([&] { open_model(folder.path()); });
    EXPECT_NE(message.find("expected a file name without a path for x"), message.npos) << message;
  }
  folder.write("model.safetensors.index.json", "{}");
  const std::string message = message_of([&] { open_model(folder.path()); });
  EXPECT_NE(message.find("expected an object \"weight_map\""), message.npos) << message;
}

TEST(HuggingFaceFolder, EveryMissingExtraAndMisshapedTensorIsListed) {
  const TempFolder folder;
  SampleFolder sample = sample_llama("qwen3", false);
  sample.tensors.erase("model.norm.weight");
  sample.tensors.erase("model.layers.1.mlp.up_proj.weight");
  sample.tensors["lm_head.weight"].dims = {16, 29};
  sample.tensors["model.layers.0.self_attn.q_proj.bias"] = {{24}, std::vector<float>(24)};
  write_folder(folder.path(), sample);
  EXPECT_EQ(
      message_of([&] { open_model(folder.path()); }),
      folder.path().string() +
          ": lm_head.weight is [16, 29], expected [29, 16]; model.layers.1.mlp.up_proj.weight is missing; "
          "model.norm.weight is missing; model.layers.0.self_attn.q_proj.bias is not part of the model");
}

TEST(HuggingFaceFolder, ConfigCannotRequestMoreMemoryThanTheFileJustifies) {
  const TempFolder folder;
  SampleFolder sample = sample_llama("llama", true);
  sample.config.set("hidden_size", 4096).set("intermediate_size", 16384).set("num_hidden_layers", 60);
  write_folder(folder.path(), sample);
  const std::string message = message_of([&] { open_model(folder.path()); });
  EXPECT_NE(message.find("model.embed_tokens.weight is [29, 16], expected [29, 4096]"), message.npos)
      << message;
  EXPECT_NE(message.find("and 342 more"), message.npos) << message;
}

TEST(HuggingFaceFolder, RepeatedTiedHeadMustEqualTheEmbedding) {
  const TempFolder folder;
  SampleFolder sample = sample_llama("llama", true);
  sample.tensors["lm_head.weight"] = sample.tensors.at("model.embed_tokens.weight");
  write_folder(folder.path(), sample);
  EXPECT_EQ(open_model(folder.path()).architecture, "llama");
  sample.tensors["lm_head.weight"].values[5] += 1;
  write_folder(folder.path(), sample);
  const std::string message = message_of([&] { open_model(folder.path()); });
  EXPECT_NE(message.find("ties the head to the embedding, but lm_head.weight differs from it"), message.npos)
      << message;
}

TEST(HuggingFaceFolder, AttentionBiasOfLlamaImpliesZeroMlpBiases) {
  const TempFolder folder;
  SampleFolder sample = sample_llama("llama", true);
  sample.config.set("attention_bias", true);
  for (int l = 0; l < 2; ++l)
    for (const auto& [name, width] : {std::pair("q", 24), {"k", 8}, {"v", 8}, {"o", 16}})
      sample.tensors[fmt::format("model.layers.{}.self_attn.{}_proj.bias", l, name)] = {
          {width}, std::vector<float>(static_cast<std::size_t>(width), 2.0f)};
  write_folder(folder.path(), sample);
  const ModelFile file = open_model(folder.path());
  const ParamTable table(file.config.model);
  for (const Param& param : table.all()) {
    if (!param.name.ends_with(".bias")) continue;
    const float expected = param.name.find("self_attn") == std::string::npos ? 0.0f : 2.0f;
    EXPECT_EQ(file.weights[static_cast<std::size_t>(param.offset)], expected) << param.name;
  }
  EXPECT_TRUE(table.find("model.layers.0.mlp.down_proj.bias"));
}

// The original GPT-2 has no prefix, and stores masks among the weights.
TEST(HuggingFaceFolder, Gpt2WithoutPrefixIsTheSame) {
  const TempFolder folder;
  const SampleFolder sample = sample_gpt2();
  SampleFolder bare{sample.config, {}};
  for (const auto& [name, tensor] : sample.tensors)
    bare.tensors[name.substr(std::string("transformer.").size())] = tensor;
  bare.tensors["h.0.attn.bias"] = {{1, 1, 16, 16}, std::vector<float>(256)};
  write_folder(folder / "a", sample);
  write_folder(folder / "b", bare);
  EXPECT_EQ(open_model(folder / "a").weights, open_model(folder / "b").weights);
  EXPECT_EQ(open_model(folder / "b").architecture, "gpt2");
}

TEST(HuggingFaceFolder, MissingWeightsNameTheExpectedFiles) {
  const TempFolder folder;
  write_folder(folder.path(), sample_gpt2());
  fs::remove(folder / "model.safetensors");
  EXPECT_EQ(message_of([&] { open_model(folder.path()); }),
            folder.path().string() + " contains neither model.safetensors nor model.safetensors.index.json");
}

// tokenizer_config.json takes precedence over config.json, which takes precedence over well-known
// names.
TEST(HuggingFaceFolder, ReadsTheTokenizer) {
  const TempFolder folder;
  SampleFolder sample = sample_llama("llama", true);
  sample.config.set("vocab_size", 300).set("bos_token_id", 7).set("eos_token_id", 8);
  sample.tensors["model.embed_tokens.weight"] = {{300, 16}, std::vector<float>(300 * 16)};
  write_folder(folder.path(), sample);
  EXPECT_EQ(open_tokenizer(open_model(folder.path())), nullptr);
  folder.write("tokenizer.json", load_tokenizer("bytes")->serialized());
  EXPECT_EQ(open_tokenizer(open_model(folder.path()))->special().bos, 7);
  EXPECT_EQ(open_tokenizer(open_model(folder.path()))->special().eos, 8);
  folder.write("tokenizer_config.json", R"({"bos_token": {"content": "<bos>"}, "eos_token": null})");
  EXPECT_EQ(open_tokenizer(open_model(folder.path()))->special().bos, 0);
  EXPECT_EQ(open_tokenizer(open_model(folder.path()))->special().eos, 8);
}

TEST(HuggingFaceFolder, TokenizerLargerThanTheEmbeddingIsAnError) {
  const TempFolder folder;
  write_folder(folder.path(), sample_llama("llama", true));
  folder.write("tokenizer.json", load_tokenizer("bytes")->serialized());
  const ModelFile file = open_model(folder.path());
  const std::string message = message_of([&] { open_tokenizer(file); });
  EXPECT_NE(message.find("tokens, the model's vocabulary has 29"), message.npos) << message;
}

}  // namespace
}  // namespace thimble
