// Importing GGUF files of other programs: unsupported features are rejected by name.
#include "formats/gguf_import.h"

#include <functional>

#include "formats/gguf_model.h"
#include "formats/small_export.h"
#include "support/message_of.h"

namespace thimble::gguf_import_test {
namespace {

struct Parts {
  GgufSettings settings;
  std::vector<ExportedTensor> tensors;

  void set(const std::string& key, GgufValue value) {
    for (auto& [own, old] : settings)
      if (own == key) {
        old = std::move(value);
        return;
      }
    settings.emplace_back(key, std::move(value));
  }
  void drop(std::string_view key) {
    std::erase_if(settings, [&](const auto& setting) { return setting.first == key; });
  }
  ExportedTensor& tensor(std::string_view name) {
    for (ExportedTensor& tensor : tensors)
      if (tensor.name == name) return tensor;
    throw std::out_of_range(std::string(name));
  }
};

// Applies `change` to the export of a small llama and reads it.
ModelFile read_changed(const std::function<void(Parts&)>& change) {
  const ModelFile model = small_export("llama");
  ExportedModel exported = exported_model(model);
  Parts parts{{{"general.architecture", std::string("llama")}}, std::move(exported.tensors)};
  std::vector<std::string> notes;
  for (const GgufSettings& some : {exported.settings, gguf_tokenizer_settings(model, notes)})
    parts.settings.insert(parts.settings.end(), some.begin(), some.end());
  change(parts);
  GgufWriter writer;
  for (const auto& [key, value] : parts.settings) writer.set(key, value);
  for (const ExportedTensor& tensor : parts.tensors)
    writer.add(tensor.name, GgufType::f32, tensor.dims, tensor.values);
  const std::string bytes = writer.to_bytes();
  return read_gguf(GgufFile::view(std::as_bytes(std::span(bytes)), "test.gguf"));
}

struct Refused {
  std::string name;
  std::function<void(Parts&)> change;
  std::string error;  // part of the message
};

void PrintTo(const Refused& refused, std::ostream* out) {
  *out << refused.name;
}

Refused with(std::string name, std::string key, GgufValue value, std::string error) {
  return {std::move(name), [=](Parts& parts) { parts.set(key, value); }, std::move(error)};
}

Refused without(std::string name, std::string key, std::string error) {
  return {std::move(name), [=](Parts& parts) { parts.drop(key); }, std::move(error)};
}

std::vector<Refused> settings() {
  const std::string known =
      "expected general.architecture llama, qwen2, qwen3, smollm3, phi3, gemma2, gemma3, gpt2, apertus or "
      "talkie, found ";
  return {
      with("AnotherArchitecture", "general.architecture", std::string("mamba"), known + "\"mamba\""),
      with("TransformersName", "general.architecture", std::string("LlamaForCausalLM"),
           known + "\"LlamaForCausalLM\""),
      without("NoArchitecture", "general.architecture", known + "\"\""),
      with("ArchitectureAsNumber", "general.architecture", 5u,
           "general.architecture is 5, expected a string"),
      with("Adapter", "general.type", std::string("adapter"), "general.type = \"adapter\" is not supported"),
      with("OneOfTwoParts", "split.count", std::uint16_t{2},
           "the file is one of 2 parts (split.count), and the others are missing"),
      without("NoContext", "llama.context_length", "llama.context_length is missing"),
      without("NoEps", "llama.attention.layer_norm_rms_epsilon",
              "llama.attention.layer_norm_rms_epsilon is missing"),
      with("EpsAsWholeNumber", "llama.attention.layer_norm_rms_epsilon", 1u,
           "llama.attention.layer_norm_rms_epsilon is 1, expected an f32"),
      with("NegativeHeads", "llama.attention.head_count", std::int32_t{-4},
           "llama.attention.head_count is -4, expected a whole number"),
      with("HeadCountsByLayer", "llama.attention.head_count", std::vector<std::uint32_t>{4, 2},
           "llama.attention.head_count is [2 of u32], expected a whole number"),
      {"HeadsOf2To40",
       [](Parts& parts) {
         parts.set("llama.attention.head_count", std::uint64_t{1} << 40);
         parts.drop("llama.rope.dimension_count");
       },
       "heads"},
      with("LayersOf2To31", "llama.block_count", 1u << 31,
           "llama.block_count is 2147483648, but there are 20 tensors"),
      with("NoLayers", "llama.block_count", 0u, "layers "),
      with("RopeScaling", "llama.rope.scaling.type", std::string("dynamic"),
           "llama.rope.scaling.type = \"dynamic\" is not supported"),
      with("RopeScalingFactor", "llama.rope.scaling.factor", 0.5f, "rope_factor "),
      with("PartialRope", "llama.rope.dimension_count", 8u,
           "llama.rope.dimension_count = 8 is not supported, expected 16"),
      with("SlidingWindowPattern", "llama.attention.sliding_window_pattern", 6u,
           "\"llama.attention.sliding_window_pattern\" = 6 is not supported"),
      with("Experts", "llama.expert_count", 8u, "llama.expert_count = 8 is not supported, expected 0"),
      with("NonCausalAttention", "llama.attention.causal", false,
           "llama.attention.causal = false is not supported"),
      with("OtherValueLength", "llama.attention.value_length", 8u,
           "llama.attention.value_length is 8, expected the same as the key length, 16"),
      with("UnknownKey", "llama.logit_scale", 2.0f, "\"llama.logit_scale\" = 2 is not supported"),
      with("KeyOfAnotherArchitecture", "qwen2.context_length", 5u,
           "\"qwen2.context_length\" = 5 is not supported"),
      with("VocabularyOfAnotherSize", "llama.vocab_size", 301u,
           "llama.vocab_size = 301 is not supported, expected 300"),
  };
}

std::vector<Refused> tokenizers() {
  const std::string ggml = "tokenizer.ggml.";
  return {
      with("AnotherTokenizer", ggml + "model", std::string("bert"),
           "the GGUF's tokenizer.ggml.model is \"bert\", which thimble does not support"),
      with("UnknownPattern", ggml + "pre", std::string("tekken"),
           "the GGUF's tokenizer.ggml.pre is \"tekken\", which thimble does not support"),
      without("NoTokens", ggml + "tokens",
              "tokenizer.ggml.bos_token_id is 0, expected less than the number of tokens, 0"),
      with("TokensAsNumbers", ggml + "tokens", std::vector<std::int32_t>{1},
           "tokenizer.ggml.tokens is [1 of i32]"),
      with("TooFewTypes", ggml + "token_type", std::vector<std::int32_t>{1},
           "the GGUF has 300 tokens and 1 token types"),
      with("TypeNine", ggml + "token_type", std::vector<std::int32_t>(300, 9),
           "the GGUF has a token of type 9; expected 1 to 6"),
      with("BosBeyondTheTokens", ggml + "bos_token_id", 300u,
           "tokenizer.ggml.bos_token_id is 300, expected less than the number of tokens, 300"),
      with("MergeWithoutSpace", ggml + "merges", std::vector<std::string>{"a"},
           "the GGUF's merge \"a\" is not two tokens separated by a space"),
      with("MergeOfUnknownToken", ggml + "merges", std::vector<std::string>{"q \xE2\x96\x81"},
           "the GGUF's merge \"q "),
      with("AddsEos", ggml + "add_eos_token", true, "tokenizer.ggml.add_eos_token = true is not supported"),
      with("AddsSpace", ggml + "add_space_prefix", true,
           "tokenizer.ggml.add_space_prefix = true is not supported for byte-level BPE"),
      with("UnknownTokenizerKey", ggml + "precompiled_charsmap", std::vector<std::uint8_t>{1},
           "\"tokenizer.ggml.precompiled_charsmap\" = [1 of u8] is not supported"),
      {"MoreTokensThanRows",
       [](Parts& parts) {
         std::vector<std::string> tokens;
         for (int i = 0; i < 301; ++i) tokens.push_back("t" + std::to_string(i));
         parts.set("tokenizer.ggml.tokens", tokens);
         parts.drop("tokenizer.ggml.token_type");
       },
       "tokenizer has 301 tokens, the model's vocabulary has 300"},
      {"TwoTokensOfOneText",
       [](Parts& parts) {
         for (auto& [key, value] : parts.settings)
           if (key == "tokenizer.ggml.tokens") std::get<std::vector<std::string>>(value)[10] = "!";
       },
       "the GGUF has the token \"!\" twice"},
      {"PiecesWithoutScores", [](Parts& parts) { parts.set("tokenizer.ggml.model", std::string("llama")); },
       "the GGUF has 300 tokens and 0 scores"},
  };
}

std::vector<Refused> tensors() {
  const auto reshape = [](Parts& parts, std::string_view name, std::vector<std::int64_t> dims) {
    ExportedTensor& tensor = parts.tensor(name);
    tensor.dims = std::move(dims);
  };
  return {
      {"NoEmbedding", [](Parts& parts) { parts.tensors.erase(parts.tensors.begin()); },
       "token_embd.weight is missing or not a matrix"},
      {"NoNorm",
       [](Parts& parts) {
         std::erase_if(parts.tensors, [](auto& t) { return t.name == "output_norm.weight"; });
       },
       "output_norm.weight is missing"},
      {"TransposedTensor",
       [=](Parts& parts) {
         reshape(parts, "blk.1.ffn_up.weight", {64, 96});
       },
       "blk.1.ffn_up.weight is [64, 96], expected [96, 64]"},
      {"FlatTensor", [=](Parts& parts) { reshape(parts, "blk.0.attn_v.weight", {32 * 64}); },
       "blk.0.attn_v.weight is [2048], expected [32, 64]"},
      {"RopeFactors",
       [](Parts& parts) {
         parts.tensors.push_back({"rope_freqs.weight", {8}, {2, 1, 3, 1, 4, 1, 5, 9}});
       },
       "rope_freqs.weight does not have the 8 divisors of Llama 3.1's rule"},
      {"RopeFactorsOfAnotherHeadSize",
       [](Parts& parts) {
         parts.tensors.push_back({"rope_freqs.weight", {4}, {1, 1, 8, 8}});
       },
       "rope_freqs.weight does not have the 8 divisors of Llama 3.1's rule"},
      {"LongRope",
       [](Parts& parts) {
         parts.tensors.push_back({"rope_factors_long.weight", {8}, std::vector<float>(8, 1.0f)});
       },
       "rope_factors_short.weight is missing, expected 8 numbers"},
      {"TensorOfAMissingLayer",
       [](Parts& parts) {
         parts.tensors.push_back({"blk.2.attn_norm.weight", {64}, std::vector<float>(64, 1.0f)});
       },
       "\"blk.2.attn_norm.weight\" is not part of the model"},
      {"NormOfHeads",
       [](Parts& parts) {
         parts.tensors.push_back({"blk.0.attn_q_norm.weight", {16}, std::vector<float>(16, 1.0f)});
       },
       "\"blk.0.attn_q_norm.weight\" is not part of the model"},
  };
}

std::vector<Refused> all_refused() {
  std::vector<Refused> all;
  for (auto& some : {settings(), tokenizers(), tensors()}) all.insert(all.end(), some.begin(), some.end());
  return all;
}

class RefusedGguf : public testing::TestWithParam<Refused> {};

TEST_P(RefusedGguf, IsNamedInTheError) {
  const std::string error = message_of([&] { read_changed(GetParam().change); });
  EXPECT_TRUE(error.starts_with("test.gguf: ")) << error;
  EXPECT_NE(error.find(GetParam().error), std::string::npos) << error << "\nexpected: " << GetParam().error;
}

INSTANTIATE_TEST_SUITE_P(Gguf, RefusedGguf, testing::ValuesIn(all_refused()),
                         [](const auto& info) { return info.param.name; });

TEST(GgufImport, HarmlessKeysAreIgnored) {
  const ModelFile model = read_changed([](Parts& parts) {
    parts.set("general.license", std::string("mit"));
    parts.set("general.sampling.temp", 0.7f);
    parts.set("llama.rope.scaling.type", std::string("none"));
    parts.set("llama.rope.scaling.factor", 1.0f);
    parts.set("llama.attention.value_length", 16u);
    parts.set("tokenizer.chat_templates", std::vector<std::string>{"tool_use"});
    parts.set("tokenizer.chat_template.tool_use", std::string("x"));
    parts.set("tokenizer.ggml.add_sep_token", false);
    parts.set("llama.attention.sliding_window", 0u);
    parts.set("llama.attention.head_count_kv", std::vector<std::int32_t>{2, 2});
    parts.set("tokenizer.ggml.fim_pre_token_id", 7u);
    parts.set("quantize.imatrix.file", std::string("x"));
    parts.drop("llama.vocab_size");
    parts.drop("llama.rope.dimension_count");
    parts.drop("llama.rope.freq_base");
  });
  EXPECT_EQ(model.weights, small_export("llama").weights);
  EXPECT_EQ(model.config.model.rope_base, 10000);
}

TEST(GgufImport, MetadataAreTheValuesAsJson) {
  const ModelFile model = read_changed([](Parts& parts) {
    parts.set("general.name", std::string("a \"b\"\n"));
    parts.set("general.tags", std::vector<std::string>{"x", "y"});
    parts.set("general.share", 0.7f);
    parts.set("general.flags", std::vector<bool>{true, false});
  });
  Json metadata = Json::object();
  for (const auto& [key, text] : model.metadata) metadata.set(key, parse_json(text, key));
  EXPECT_EQ(metadata.at("general.name"), Json("a \"b\"\n"));
  EXPECT_EQ(metadata.at("general.tags"), Json::array({"x", "y"}));
  EXPECT_EQ(metadata.at("general.share"), Json(0.7));
  EXPECT_EQ(metadata.at("general.flags"), Json::array({true, false}));
  EXPECT_EQ(metadata.at("llama.block_count"), Json(2));
  EXPECT_EQ(metadata.at("tokenizer.ggml.tokens"), Json::object().set("type", "string").set("count", 300));
}

TEST(GgufImport, AllProblemsAreReportedTogether) {
  const std::string error = message_of([&] {
    read_changed([](Parts& parts) {
      parts.drop("llama.context_length");
      parts.set("llama.expert_count", 8u);
    });
  });
  EXPECT_EQ(
      error,
      "test.gguf: llama.context_length is missing; llama.expert_count = 8 is not supported, expected 0");
}

TEST(GgufImport, AbsentBiasIsZero) {
  const ModelFile model = read_changed([](Parts& parts) {
    parts.tensors.push_back({"blk.0.attn_q.bias", {64}, std::vector<float>(64, 0.5f)});
  });
  const ParamTable table(model.config.model);
  EXPECT_TRUE(model.config.model.qkv_bias);
  EXPECT_EQ(model.weights[static_cast<std::size_t>(table.view(Role::query_bias, 0).offset)], 0.5f);
  EXPECT_EQ(model.weights[static_cast<std::size_t>(table.view(Role::query_bias, 1).offset)], 0.0f);
  EXPECT_EQ(model.weights[static_cast<std::size_t>(table.view(Role::value_bias, 0).offset)], 0.0f);
}

}  // namespace
}  // namespace thimble::gguf_import_test
