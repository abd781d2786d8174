// Export of llama, qwen2 and qwen3 to GGUF and back.
#include "formats/gguf_model.h"

#include <fmt/format.h>

#include <map>
#include <set>

#include "formats/gguf_import.h"
#include "formats/small_export.h"
#include "support/message_of.h"
#include "support/simulated_disk.h"
#include "support/temp_folder.h"
#include "tokenizer/chat_layout.h"

namespace thimble::gguf_model_test {
namespace {

struct Written {
  std::string bytes;
  GgufReport report;
  std::vector<std::string> notes;
};

Written written(const ModelFile& model, GgufType type = GgufType::f32,
                const std::string& path = "/d/tiny.gguf") {
  SimulatedDisk disk;
  disk.put_folder("/d");
  Written out;
  const GgufSettings tokenizer = gguf_tokenizer_settings(model, out.notes);
  out.report = write_gguf(disk, path, Existing::refuse, exported_model(model), tokenizer, type);
  out.bytes = disk.content(path).value();
  return out;
}

GgufFile view(const std::string& bytes) {
  return GgufFile::view(std::as_bytes(std::span(bytes)), "tiny.gguf");
}

template <class T>
T setting(const GgufFile& file, std::string_view key) {
  const GgufValue* value = file.find_setting(key);
  EXPECT_TRUE(value && std::holds_alternative<T>(*value)) << key;
  return value ? std::get<T>(*value) : T();
}

class EveryExport : public testing::TestWithParam<std::vector<std::string>> {};

TEST_P(EveryExport, RoundTripsExactly) {
  std::vector<std::string> changes = GetParam();
  const std::string preset = changes.front();
  changes.erase(changes.begin());
  const ModelFile model = small_export(preset, changes);
  const Written file = written(model);
  const ModelFile again = read_gguf(view(file.bytes));
  EXPECT_EQ(again.format, "gguf");
  EXPECT_EQ(again.architecture, gguf_architecture(model.config.model));
  EXPECT_EQ(again.weights, model.weights);
  ModelConfig expected = model.config.model;  // initialization settings are not in the file
  const ModelConfig& found = again.config.model;
  expected.init = found.init, expected.init_std = found.init_std,
  expected.embed_init_std = found.embed_init_std;
  expected.dropout = found.dropout;
  EXPECT_EQ(found, expected);
  EXPECT_EQ(again.layout, model.layout);
  const auto before = open_tokenizer(model), after = open_tokenizer(again);
  EXPECT_EQ(after->encode("<user> caf\xC3\xA9\n"), before->encode("<user> caf\xC3\xA9\n"));
  EXPECT_EQ(after->special_tokens(), before->special_tokens());
  EXPECT_EQ(after->special().bos, 0);
  EXPECT_EQ(after->special().eos, std::nullopt);  // the file only has bos, which separates documents
  EXPECT_EQ(file.report.bytes, file.bytes.size());
  EXPECT_EQ(file.report.tensors, again.tensors.size());
}

// The tokenizer of a GGUF is opened without parsing the tokenizer.json that it was converted to.
TEST(GgufModel, ItsTokenizerIsThatOfTheTokenizerJson) {
  ModelFile model = read_gguf(view(written(small_export("qwen2")).bytes));
  ASSERT_TRUE(model.tokenizer->spec);
  const auto found = open_tokenizer(model);
  model.tokenizer->spec.reset();
  const auto expected = open_tokenizer(model);
  ASSERT_EQ(found->vocab_size(), expected->vocab_size());
  for (TokenId id = 0; id < found->vocab_size(); ++id) {
    EXPECT_EQ(found->token_text(id), expected->token_text(id));
    EXPECT_EQ(found->token_type(id), expected->token_type(id));
  }
  EXPECT_EQ(found->serialized(), expected->serialized());
  EXPECT_EQ(found->special_tokens(), expected->special_tokens());
  EXPECT_EQ(found->special().bos, expected->special().bos);
  EXPECT_EQ(found->special().eos, expected->special().eos);
  EXPECT_EQ(found->encode("<user> caf\xC3\xA9\n"), expected->encode("<user> caf\xC3\xA9\n"));
}

INSTANTIATE_TEST_SUITE_P(
    Gguf, EveryExport,
    testing::Values(std::vector<std::string>{"llama"},
                    std::vector<std::string>{"llama", "tie_embeddings=false"},
                    std::vector<std::string>{"llama", "bias=true"},
                    std::vector<std::string>{"llama", "head_dim=8"}, std::vector<std::string>{"qwen2"},
                    std::vector<std::string>{"qwen2", "head_dim=32"},
                    std::vector<std::string>{"qwen2", "kv_heads=4", "tie_embeddings=false"},
                    std::vector<std::string>{"qwen3"}, std::vector<std::string>{"qwen3", "head_dim=32"},
                    std::vector<std::string>{"qwen3", "qkv_bias=true"}));

TEST(GgufModel, LlamaStoresHeadRowsAsAdjacentPairs) {
  const ModelFile model = small_export("llama", {"bias=true"});
  const ParamTable table(model.config.model);
  const Written file = written(model);
  const std::int64_t C = 64, D = 16;
  const auto expect_order = [&](std::string_view name, Role role, std::int64_t heads, std::int64_t columns) {
    std::vector<float> found(static_cast<std::size_t>(heads * D * columns));
    view(file.bytes).read_f32(name, found);
    const float* ours = model.weights.data() + table.view(role, 1).offset;
    for (std::int64_t head = 0; head < heads; ++head)
      for (std::int64_t i = 0; i < D / 2; ++i)
        for (std::int64_t c = 0; c < columns; ++c) {
          const float first = ours[(head * D + i) * columns + c],
                      second = ours[(head * D + i + D / 2) * columns + c];
          EXPECT_EQ(found[static_cast<std::size_t>((head * D + 2 * i) * columns + c)], first);
          EXPECT_EQ(found[static_cast<std::size_t>((head * D + 2 * i + 1) * columns + c)], second);
        }
  };
  expect_order("blk.1.attn_q.weight", Role::query, 4, C);
  expect_order("blk.1.attn_k.weight", Role::key, 2, C);
  expect_order("blk.1.attn_q.bias", Role::query_bias, 4, 1);
  expect_order("blk.1.attn_k.bias", Role::key_bias, 2, 1);
}

TEST(GgufModel, QwenKeepsTheOrderOfHeadRows) {
  for (const char* preset : {"qwen2", "qwen3"}) {
    const ModelFile model = small_export(preset);
    const ParamView query = ParamTable(model.config.model).view(Role::query, 1);
    std::vector<float> found(static_cast<std::size_t>(query.count()));
    const Written file = written(model);
    view(file.bytes).read_f32("blk.1.attn_q.weight", found);
    EXPECT_TRUE(std::equal(found.begin(), found.end(), model.weights.begin() + query.offset)) << preset;
  }
}

TEST(GgufModel, KeysHaveTheTypesThatLlamaCppReads) {
  const Written file = written(small_export("qwen3", {"head_dim=32", "rope_base=5000"}), GgufType::q8_0);
  const GgufFile gguf = view(file.bytes);
  EXPECT_EQ(setting<std::string>(gguf, "general.architecture"), "qwen3");
  EXPECT_EQ(setting<std::string>(gguf, "general.name"), "tiny");
  EXPECT_EQ(setting<std::uint32_t>(gguf, "general.file_type"), 7u);
  EXPECT_EQ(setting<std::uint32_t>(gguf, "general.quantization_version"), 2u);
  const std::vector<std::pair<std::string, std::uint32_t>> counts = {
      {"context_length", 32},      {"embedding_length", 64},     {"block_count", 2},
      {"feed_forward_length", 96}, {"attention.head_count", 4},  {"attention.head_count_kv", 2},
      {"vocab_size", 300},         {"attention.key_length", 32}, {"attention.value_length", 32},
      {"rope.dimension_count", 32}};
  for (const auto& [name, value] : counts)
    EXPECT_EQ(setting<std::uint32_t>(gguf, "qwen3." + name), value) << name;
  EXPECT_EQ(setting<float>(gguf, "qwen3.rope.freq_base"), 5000.0f);
  EXPECT_EQ(setting<float>(gguf, "qwen3.attention.layer_norm_rms_epsilon"), 1e-6f);
  EXPECT_EQ(view(written(small_export("qwen3")).bytes).find_setting("general.quantization_version"), nullptr);
}

TEST(GgufModel, GeneralNameIsValidUtf8ForAnyFileName) {
  const Written file = written(small_export("llama"), GgufType::f32, "/d/caf\xE9 \xC3\xA9.gguf");
  EXPECT_EQ(setting<std::string>(view(file.bytes), "general.name"), "caf\uFFFD \u00E9");
}

TEST(GgufModel, VectorsStayF32AndRowsThatFitNoBlockBecomeF16) {
  const Written file = written(small_export("qwen2", {"mlp_hidden=72"}), GgufType::q4_0);
  const GgufFile gguf = view(file.bytes);
  EXPECT_EQ(file.report.fallbacks,
            (std::vector<std::string>{"blk.0.ffn_down.weight, blk.1.ffn_down.weight: the row length is not "
                                      "a multiple of the block size of Q4_0, stored as F16"}));
  for (const GgufEntry& entry : gguf.entries())
    EXPECT_EQ(entry.type, entry.dims.size() == 1                           ? GgufType::f32
                          : entry.name.find("ffn_down") != entry.name.npos ? GgufType::f16
                                                                           : GgufType::q4_0)
        << entry.name;
}

// What llama_model_quantize of llama.cpp chooses; tests/interop compares with it.
TEST(GgufModel, MixesStoreTheHeadAndHalfOfVAndDownAsQ6K) {
  const auto is_wide = [](std::string_view tensor, std::int64_t layers, bool tied = false) {
    EXPECT_EQ(mixed_type(GgufType::q6_k, tensor, layers, tied), GgufType::q6_k);
    EXPECT_EQ(mixed_type(GgufType::q4_0, tensor, layers, tied), GgufType::q4_0);
    const GgufType four = mixed_type(GgufType::q4_k, tensor, layers, tied),
                   five = mixed_type(GgufType::q5_k, tensor, layers, tied);
    EXPECT_EQ(four, five == GgufType::q6_k ? GgufType::q6_k : GgufType::q4_k);
    return four == GgufType::q6_k;
  };
  EXPECT_TRUE(is_wide("output.weight", 12));
  EXPECT_FALSE(is_wide("token_embd.weight", 12));
  EXPECT_TRUE(is_wide("token_embd.weight", 12, true));
  std::vector<int> wide;
  for (int layer = 0; layer < 12; ++layer) {
    if (is_wide(fmt::format("blk.{}.attn_v.weight", layer), 12)) wide.push_back(layer);
    EXPECT_EQ(is_wide(fmt::format("blk.{}.ffn_down.weight", layer), 12), wide.size() && wide.back() == layer);
    for (const char* other : {"attn_q", "attn_k", "attn_output", "ffn_up", "ffn_gate"})
      EXPECT_FALSE(is_wide(fmt::format("blk.{}.{}.weight", layer, other), 12));
  }
  EXPECT_EQ(wide, (std::vector<int>{0, 3, 6, 9, 10, 11}));
}

TEST(GgufModel, MixIsWrittenWithItsFileTypeAndVectorsInF32) {
  const Written file =
      written(small_export("llama", {"dim=256", "mlp_hidden=256", "tie_embeddings=false"}), GgufType::q5_k);
  EXPECT_EQ(file.report.fallbacks, std::vector<std::string>{});
  const GgufFile gguf = view(file.bytes);
  EXPECT_EQ(setting<std::uint32_t>(gguf, "general.file_type"), 17u);
  EXPECT_EQ(setting<std::uint32_t>(gguf, "general.quantization_version"), 2u);
  std::set<std::string> wide;
  for (const GgufEntry& entry : gguf.entries()) {
    if (entry.type == GgufType::q6_k) wide.insert(entry.name);
    EXPECT_TRUE(entry.dims.size() == 2 || entry.type == GgufType::f32) << entry.name;
  }
  EXPECT_EQ(wide, (std::set<std::string>{"output.weight", "blk.1.attn_v.weight", "blk.1.ffn_down.weight"}));
}

TEST(GgufModel, MixOfRowsThatDoNotFitUsesTypesOf32Numbers) {
  const Written file = written(small_export("qwen2", {"mlp_hidden=256"}), GgufType::q4_k);
  std::map<std::string, GgufType> types;
  const GgufFile gguf = view(file.bytes);
  for (const GgufEntry& entry : gguf.entries()) types[entry.name] = entry.type;
  EXPECT_EQ(types["token_embd.weight"], GgufType::q8_0);  // tied to the head, meant to be Q6_K
  EXPECT_EQ(types["blk.0.attn_q.weight"], GgufType::q5_0);
  EXPECT_EQ(types["blk.0.ffn_down.weight"], GgufType::q4_k);
  EXPECT_EQ(types["blk.1.ffn_down.weight"], GgufType::q6_k);  // in the last eighth
  ASSERT_EQ(file.report.fallbacks.size(), 2u);
  EXPECT_EQ(file.report.fallbacks[0],
            "blk.0.attn_q.weight, blk.0.attn_k.weight, blk.0.attn_v.weight and 8 more: the row length is not "
            "a multiple of the block size of Q4_K, stored as Q5_0");
}

TEST(GgufModel, TiedHeadIsNotWritten) {
  EXPECT_EQ(view(written(small_export("llama")).bytes).find("output.weight"), nullptr);
  const Written untied = written(small_export("llama", {"tie_embeddings=false"}));
  EXPECT_NE(view(untied.bytes).find("output.weight"), nullptr);
}

TEST(GgufModel, TokenizerIsComplete) {
  const ModelFile model = small_export("llama");
  const Written file = written(model);
  const GgufFile gguf = view(file.bytes);
  EXPECT_EQ(setting<std::string>(gguf, "tokenizer.ggml.model"), "gpt2");
  EXPECT_EQ(setting<std::string>(gguf, "tokenizer.ggml.pre"), "qwen2");
  const auto tokens = setting<std::vector<std::string>>(gguf, "tokenizer.ggml.tokens");
  const auto types = setting<std::vector<std::int32_t>>(gguf, "tokenizer.ggml.token_type");
  ASSERT_EQ(tokens.size(), 300u);
  ASSERT_EQ(types.size(), 300u);
  EXPECT_EQ(std::set<std::string>(tokens.begin(), tokens.end()).size(), 300u);
  EXPECT_EQ(tokens[3], "<end_turn>");
  EXPECT_EQ(types[3], 3);
  EXPECT_EQ(types[100], 1);
  EXPECT_EQ(tokens[261], "<|pad_261|>");
  EXPECT_EQ(types[261], 5);
  EXPECT_EQ(setting<std::uint32_t>(gguf, "tokenizer.ggml.bos_token_id"), 0u);
  EXPECT_EQ(setting<std::uint32_t>(gguf, "tokenizer.ggml.eos_token_id"), 0u);  // bos separates documents
  EXPECT_EQ(setting<std::uint32_t>(gguf, "tokenizer.ggml.eot_token_id"), 3u);
  // llama.cpp does not know the spellings of these ends.
  EXPECT_EQ(setting<std::uint32_t>(gguf, "tokenizer.ggml.fim_pad_token_id"), 0u);
  EXPECT_EQ(setting<std::uint32_t>(gguf, "tokenizer.ggml.fim_rep_token_id"), 3u);
  EXPECT_EQ(setting<bool>(gguf, "tokenizer.ggml.add_bos_token"), true);
  EXPECT_EQ(setting<std::string>(gguf, "tokenizer.chat_template"),
            jinja_template(ChatLayoutText::parse(kRolesLayout)));
}

TEST(GgufModel, PaddingTokensAreDroppedOnImport) {
  const Written file = written(small_export("llama"));
  const auto tokenizer = open_tokenizer(read_gguf(view(file.bytes)));
  EXPECT_EQ(tokenizer->vocab_size(), 261);
}

TEST(GgufModel, WithoutATokenizerTheModelIsNoVocab) {
  ModelFile model = small_export("llama");
  model.tokenizer.reset();
  model.layout.clear();
  const Written file = written(model);
  EXPECT_EQ(setting<std::string>(view(file.bytes), "tokenizer.ggml.model"), "no_vocab");
  ASSERT_EQ(file.notes.size(), 1u);
  EXPECT_FALSE(read_gguf(view(file.bytes)).tokenizer.has_value());
}

TEST(GgufModel, EqualModelsGiveEqualBytes) {
  EXPECT_EQ(written(small_export("llama"), GgufType::q8_0).bytes,
            written(small_export("llama"), GgufType::q8_0).bytes);
}

TEST(GgufModel, TensorsThatLlamaCppDoesNotHaveAreNamed) {
  EXPECT_EQ(gguf_architecture(small_export("qwen2", {"head_dim=32"}).config.model), "llama");
  EXPECT_EQ(gguf_architecture(small_export("golf").config.model), "");
  ModelFile biased = small_export("qwen3", {"bias=true"});
  const std::string bias = message_of([&] { exported_model(biased); });
  EXPECT_TRUE(bias.starts_with("llama.cpp's qwen3 does not have these tensors, which are not zero: "))
      << bias;
  EXPECT_NE(bias.find("model.layers.1.mlp.down_proj.bias"), std::string::npos) << bias;
  const ParamTable table(biased.config.model);
  for (const Param& param : table.all())
    if (param.name.ends_with(".bias") && param.role != Role::query_bias)
      std::fill_n(biased.weights.begin() + param.offset, param.count(), 0.0f);
  const ModelFile again = read_gguf(view(written(biased).bytes));
  EXPECT_TRUE(again.config.model.qkv_bias);
  EXPECT_EQ(
      message_of([] { exported_model(small_export("golf")); }),
      "source is a golf model; expected one of llama, qwen2, qwen3, smollm3, phi3, gemma2, gemma3, gpt2");
}

}  // namespace
}  // namespace thimble::gguf_model_test
