#include "formats/hugging_face_write.h"

#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "base/table.h"
#include "formats/architecture.h"
#include "formats/atomic_folder.h"
#include "formats/hugging_face.h"
#include "formats/hugging_face_write_tokenizer.h"
#include "formats/problems.h"
#include "formats/weights_write.h"

namespace thimble {

namespace {

namespace fs = std::filesystem;

// What the folder says of ids: none of it where there is no tokenizer.
struct EndsOfText {
  std::optional<TokenId> bos, pad;
  std::vector<TokenId> ends = {};
  std::vector<std::int64_t> silent = {};  // ids that stand for no token

  Json end_ids() const {
    if (ends.size() == 1) return ends.front();
    Json ids = Json::array();
    for (const TokenId id : ends) ids.push(id);
    return ids;
  }
};

std::string_view torch_name(DType dtype) {
  return dtype == DType::f32 ? "float32" : dtype == DType::bf16 ? "bfloat16" : "float16";
}

std::string class_name(std::string_view architecture) {
  const std::string_view name = architecture == "llama"   ? "Llama"
                                : architecture == "qwen2" ? "Qwen2"
                                                          : "Qwen3";
  return fmt::format("{}ForCausalLM", name);
}

Json config_json(const ModelConfig& c, std::string_view architecture, DType dtype, const EndsOfText& ends) {
  Json config =
      Json::object()
          .set("architectures", Json::array({class_name(architecture)}))
          .set("model_type", architecture)
          .set("vocab_size", c.vocab_size)
          .set("hidden_size", c.dim)
          .set("intermediate_size", c.mlp_hidden)
          .set("num_hidden_layers", c.layers)
          .set("num_attention_heads", c.heads)
          .set("num_key_value_heads", c.kv_heads)
          .set("head_dim", c.head_dim)
          .set("hidden_act", "silu")
          .set("max_position_embeddings", c.context)
          .set("rms_norm_eps", c.norm_eps)
          .set("tie_word_embeddings", c.tie_embeddings)
          .set("attention_dropout", 0.0)
          .set("initializer_range", c.init_std)
          // Transformers 4, then 5
          .set("rope_theta", c.rope_base)
          .set("rope_parameters", Json::object().set("rope_type", "default").set("rope_theta", c.rope_base))
          .set("torch_dtype", torch_name(dtype))
          .set("dtype", torch_name(dtype))
          .set("use_cache", true);
  if (architecture != "qwen2") config.set("attention_bias", c.bias);
  if (architecture == "llama") config.set("mlp_bias", c.bias);
  if (architecture != "llama") config.set("use_sliding_window", false).set("sliding_window", nullptr);
  if (ends.bos) config.set("bos_token_id", *ends.bos);
  if (!ends.ends.empty()) config.set("eos_token_id", ends.ends.front());
  if (ends.pad) config.set("pad_token_id", *ends.pad);
  return config;
}

Json generation_json(const ModelConfig& config, const EndsOfText& ends) {
  Json generation = Json::object().set("max_length", config.context);
  if (ends.bos) generation.set("bos_token_id", *ends.bos);
  if (!ends.ends.empty()) generation.set("eos_token_id", ends.end_ids());
  if (ends.pad) generation.set("pad_token_id", *ends.pad);
  if (!ends.silent.empty())
    generation.set("suppress_tokens", Json::array({ends.silent.begin(), ends.silent.end()}));
  return generation;
}

// Holes in the vocabulary, and rows of the embedding behind its end.
std::vector<std::int64_t> ids_without_token(const Tokenizer& tokenizer, std::int64_t rows) {
  std::vector<std::int64_t> ids;
  for (std::int64_t id = 0; id < rows; ++id)
    if (id >= tokenizer.vocab_size() || tokenizer.token_type(static_cast<TokenId>(id)) == TokenType::unused)
      ids.push_back(id);
  return ids;
}

constexpr std::string_view kCard = R"(---
library_name: transformers
pipeline_tag: text-generation
tags:
- thimble
---
# {0}

A small {1} of {2} parameters, trained with thimble: {3} layers of width {4}, {5} heads ({6} for keys and values),
a vocabulary of {7}, texts of up to {8} tokens. Weights are {9}.

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("{0}")
model = AutoModelForCausalLM.from_pretrained("{0}")
{10}
print(tokenizer.decode(model.generate(**inputs, max_new_tokens=64)[0]))
```
)";
constexpr std::string_view kChatInputs =
    R"(inputs = tokenizer.apply_chat_template([{"role": "user", "content": "Hello"}], add_generation_prompt=True,
                                       return_dict=True, return_tensors="pt"))";
constexpr std::string_view kTextInputs = R"(inputs = tokenizer("Once", return_tensors="pt"))";

std::string model_card(const fs::path& folder, const ModelFile& model, std::string_view architecture,
                       DType dtype, bool chats) {
  const ModelConfig& c = model.config.model;
  return fmt::format(kCard, folder.filename().string(), architecture, with_commas(ParamTable(c).count()),
                     c.layers, c.dim, c.heads, c.kv_heads, with_commas(c.vocab_size), with_commas(c.context),
                     torch_name(dtype), chats ? kChatInputs : kTextInputs);
}

bool is_mlp_bias(const Param& param) {
  using enum Role;
  return param.role == mlp_gate_bias || param.role == mlp_up_bias || param.role == mlp_proj_bias;
}

// Transformers' qwen3 has biases in its attention alone: ours must be 0 elsewhere, as they are after an import.
void check_biases(const ModelFile& model, const ParamTable& table) {
  for (const Param& param : table.all())
    if (is_mlp_bias(param))
      check(std::ranges::all_of(param.in(std::span(model.weights)), [](float value) { return value == 0; }),
            Hint{"train without `bias`, as --preset qwen3 does"},
            "{} is not 0, and Transformers' qwen3 has no biases in its MLP", param.name);
}

std::size_t write_weights(FileOps& ops, const fs::path& path, const ModelFile& model,
                          std::string_view architecture, DType dtype) {
  const ParamTable table(model.config.model);
  const bool drops = architecture == "qwen3" && model.config.model.bias;
  if (drops) check_biases(model, table);
  const auto wanted = [&](const Param& param) { return !drops || !is_mlp_bias(param); };
  SafetensorsWriter writer;
  writer.set_metadata("format", "pt");  // Transformers asks for it
  add_weights(writer, table, model.weights, dtype, wanted);
  writer.write(ops, path, Existing::refuse, WithDigest::no);
  return static_cast<std::size_t>(std::ranges::count_if(table.all(), wanted));
}

// Files that a folder of this kind has, be it ours or Transformers' own: nothing of a user's.
bool is_expected(const fs::directory_entry& entry) {
  constexpr std::string_view kNames[] = {"README.md",
                                         "chat_template.jinja",
                                         "config.json",
                                         "generation_config.json",
                                         "model.safetensors",
                                         "model.safetensors.index.json",
                                         "tokenizer.json",
                                         "tokenizer.model",
                                         "tokenizer_config.json",
                                         "special_tokens_map.json"};
  const std::string name = entry.path().filename().string();
  const bool shard = name.starts_with("model-") && name.ends_with(".safetensors");
  return entry.symlink_status().type() == fs::file_type::regular &&
         (shard || std::ranges::count(kNames, name) > 0);
}

bool is_replaceable(const fs::path& folder) {
  return is_hugging_face_folder(folder) && std::ranges::all_of(fs::directory_iterator(folder), is_expected);
}

void check_not_the_source(const fs::path& target, const fs::path& source) {
  const fs::path folder = fs::weakly_canonical(target), model = fs::weakly_canonical(source);
  const auto apart = std::mismatch(folder.begin(), folder.end(), model.begin(), model.end());
  check(apart.first != folder.end(), Hint{"name another folder with -o"},
        "{} holds the model that is to be exported", target.string());
}

std::uint64_t bytes_in(const fs::path& folder) {
  std::uint64_t bytes = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) bytes += entry.file_size();
  return bytes;
}

}  // namespace

std::vector<std::string> reasons_against_hugging_face(const ModelConfig& c) {
  std::vector<std::string> reasons;
  const auto refuse = [&](bool wrong, const char* reason) {
    if (wrong) reasons.push_back(reason);
  };
  refuse(c.unet_skips, "unet_skips");
  refuse(c.parallel_from >= 0, "parallel_from");
  refuse(c.loop_count > 0, "loop_count");
  refuse(c.residual_mix != MixKind::none, "residual_mix");
  refuse(c.branch_scale, "branch_scale");
  refuse(c.q_gain != GainKind::none, "q_gain");
  refuse(c.layer_scale, "layer_scale");
  refuse(c.exclusive_attention, "exclusive_attention");
  refuse(c.bigram_buckets > 0, "bigram_buckets");
  refuse(c.smear_gate, "smear_gate");
  refuse(c.logit_softcap > 0, "logit_softcap");
  refuse(c.norm != NormKind::rms_weight, "norm is not rms_weight");
  refuse(c.embed_norm, "embed_norm");
  refuse(!c.final_norm, "final_norm = false");
  refuse(!c.gated_mlp(), "mlp is not swiglu");
  refuse(c.position != PositionKind::rope, "position is not rope");
  refuse(c.position == PositionKind::rope && c.rope_dims != c.head_dim, "rope_dims is not head_dim");
  refuse(c.position == PositionKind::rope && c.rope_direction != 1, "rope_direction = -1");
  refuse(c.qk_norm && c.qkv_bias && !c.bias, "qkv_bias together with qk_norm");
  return reasons;
}

void check_for_hugging_face(const ModelConfig& config) {
  const auto reasons = reasons_against_hugging_face(config);
  check(reasons.empty(),
        Hint{"llama.cpp takes more: --format gguf folds what can be folded. Or train with --preset llama or "
             "qwen3"},
        "Transformers' llama, qwen2 and qwen3 cannot express this model: {}", listed(reasons));
}

HuggingFaceReport write_hugging_face(FileOps& ops, const fs::path& target, Existing existing,
                                     const ModelFile& model, DType dtype, const Inspector& inspect) {
  const ModelConfig& config = model.config.model;
  check_for_hugging_face(config);
  HuggingFaceReport report{.architecture = std::string(architecture_of(config))};
  check_not_the_source(target, model.path);
  AtomicFolder folder(ops, target, existing, is_replaceable);
  const auto put = [&](std::string_view name, std::string_view content) {
    naming(target / name, [&] { write_file(ops, folder.path() / name, content, Existing::refuse); });
  };
  EndsOfText ends;
  bool chats = false;
  if (const auto tokenizer = open_tokenizer(model)) {
    const TokenizerFiles files = hugging_face_tokenizer(model, *tokenizer);
    ends = {tokenizer->special().bos, tokenizer->special().pad, files.ends,
            ids_without_token(*tokenizer, config.vocab_size)};
    report.notes = files.notes;
    chats = files.chats;
    for (const auto& [name, content] : files.files) put(name, content);
  } else {
    report.notes.push_back("the model has no tokenizer: neither has the folder");
  }
  put("config.json", config_json(config, report.architecture, dtype, ends).dump(2) + "\n");
  put("generation_config.json", generation_json(config, ends).dump(2) + "\n");
  put("README.md", model_card(fs::absolute(target), model, report.architecture, dtype, chats));
  constexpr const char* kWeights = "model.safetensors";
  naming(target / kWeights, [&] {
    report.tensors = write_weights(ops, folder.path() / kWeights, model, report.architecture, dtype);
  });
  report.bytes = bytes_in(folder.path());
  if (inspect) inspect(folder.path());
  folder.commit();
  return report;
}

}  // namespace thimble
