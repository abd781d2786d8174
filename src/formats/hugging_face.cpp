#include "formats/hugging_face.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "formats/hugging_face_config.h"
#include "formats/problems.h"
#include "formats/weight_sources.h"
#include "tokenizer/chat_template.h"

namespace thimble {

namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxJsonBytes = 64 << 20;
constexpr std::uint64_t kMaxTokenizerBytes = 256 << 20;
constexpr const char* kIndex = "model.safetensors.index.json";

// The shards that the index names, each once. A name is a name: no way out of the folder.
std::set<std::string> shard_names(const Json& map, const fs::path& folder, std::string_view index) {
  std::set<std::string> names;
  std::vector<std::string> problems;
  for (const auto& [tensor, value] : map.as_object()) {
    const std::string& name = value.as_string();
    check(!name.empty() && fs::path(name).filename() == name && name != "..",
          "{}: expected the name of a file in this folder for {}, found '{}'", index, tensor, name);
    if (names.insert(name).second && !fs::is_regular_file(folder / name))
      problems.push_back(fmt::format("{} is missing", name));
  }
  check(problems.empty(), Hint{"download the folder again"}, "{}: {}", folder.string(), listed(problems));
  return names;
}

TensorFiles open_shards(const fs::path& folder) {
  const std::string index = (folder / kIndex).string();
  const Json json = parse_json(read_file(index, kMaxJsonBytes), index);
  const Json* map = json.find("weight_map");
  check(map && map->is_object(), "{}: expected an object \"weight_map\"", index);
  TensorFiles files(folder.string());
  for (const std::string& name : shard_names(*map, folder, index))
    files.add(SafetensorsFile::open(folder / name));
  std::vector<std::string> problems;
  for (const auto& [tensor, shard] : map->as_object())
    if (!files.find(tensor)) problems.push_back(fmt::format("{} is not in {}", tensor, shard.as_string()));
  check(problems.empty(), "{}: {}", folder.string(), listed(problems));
  return files;
}

TensorFiles open_tensors(const fs::path& folder) {
  if (fs::is_regular_file(folder / "model.safetensors")) {
    TensorFiles files(folder.string());
    files.add(SafetensorsFile::open(folder / "model.safetensors"));
    return files;
  }
  check(
      fs::is_regular_file(folder / kIndex),
      Hint{fs::exists(folder / "pytorch_model.bin") ? "pickled weights are not read: save them as safetensors"
                                                    : "download the folder again"},
      "{} holds neither model.safetensors nor {}", folder.string(), kIndex);
  return open_shards(folder);
}

bool has_bias(const HuggingFaceConfig& config, Role role) {
  using enum Role;
  if (role == query_bias || role == key_bias || role == value_bias)
    return config.attention_bias || config.model.qkv_bias;
  if (role == attn_proj_bias) return config.attention_bias;
  if (role == mlp_gate_bias || role == mlp_up_bias || role == mlp_proj_bias) return config.mlp_bias;
  return true;
}

std::vector<WeightSource> llama_sources(const HuggingFaceConfig& config, const ParamTable& table) {
  std::vector<WeightSource> sources = sources_by_name(table);
  for (std::size_t i = 0; i < sources.size(); ++i)
    if (!has_bias(config, table.all()[i].role)) sources[i] = {};
  return sources;
}

WeightSource gpt2_source(const ModelConfig& config, const Param& param, std::string_view prefix) {
  using enum Role;
  const std::int64_t C = config.dim, F = config.mlp_hidden;
  const auto plain = [&](std::string_view name) {
    return WeightSource{.name = fmt::format("{}{}", prefix, name), .dims = param.dims};
  };
  const auto block = [&](std::string_view name) { return plain(fmt::format("h.{}.{}", param.layer, name)); };
  const auto turned = [&](std::string_view name, std::int64_t in, std::int64_t out, std::int64_t first = 0) {
    WeightSource source = block(name);
    source.dims = {in, out};
    source.transposed = true;
    source.first = first;
    return source;
  };
  const auto part = [&](std::int64_t first) {
    WeightSource source = block("attn.c_attn.bias");
    source.dims = {3 * C};
    source.first = first;
    return source;
  };
  switch (param.role) {
    case token_embedding:
      return plain("wte.weight");
    case position_embedding:
      return plain("wpe.weight");
    case head:  // stands beside the transformer, not in it
      return {.name = "lm_head.weight", .dims = param.dims};
    case query:
      return turned("attn.c_attn.weight", C, 3 * C);
    case key:
      return turned("attn.c_attn.weight", C, 3 * C, C);
    case value:
      return turned("attn.c_attn.weight", C, 3 * C, 2 * C);
    case query_bias:
      return part(0);
    case key_bias:
      return part(C);
    case value_bias:
      return part(2 * C);
    case attn_proj:
      return turned("attn.c_proj.weight", C, C);
    case attn_proj_bias:
      return block("attn.c_proj.bias");
    case mlp_fc:
      return turned("mlp.c_fc.weight", C, F);
    case mlp_fc_bias:
      return block("mlp.c_fc.bias");
    case mlp_proj:
      return turned("mlp.c_proj.weight", F, C);
    case mlp_proj_bias:
      return block("mlp.c_proj.bias");
    case attn_norm:
      return block("ln_1.weight");
    case attn_norm_bias:
      return block("ln_1.bias");
    case mlp_norm:
      return block("ln_2.weight");
    case mlp_norm_bias:
      return block("ln_2.bias");
    case final_norm:
      return plain("ln_f.weight");
    case final_norm_bias:
      return plain("ln_f.bias");
    default:
      fail("[hugging face] GPT-2 has no {}", param.name);
  }
}

std::vector<WeightSource> gpt2_sources(const HuggingFaceConfig& config, const ParamTable& table,
                                       const TensorFiles& files) {
  // Saved from the bare transformer, as the first GPT-2 was, names lack this prefix.
  const char* prefix = files.find("transformer.wte.weight") ? "transformer." : "";
  std::vector<WeightSource> sources;
  for (const Param& param : table.all()) sources.push_back(gpt2_source(config.model, param, prefix));
  return sources;
}

// Tables and masks that older versions saved though they follow from the config.
bool is_buffer(std::string_view name) {
  return name.ends_with(".rotary_emb.inv_freq") || name.ends_with(".attn.bias") ||
         name.ends_with(".attn.masked_bias");
}

// Some files repeat a tied embedding as the head. That is fine as long as it is the same.
void check_tied_head(const TensorFiles& files, const ParamTable& table, std::span<const float> weights) {
  const SafetensorsEntry* head = files.find("lm_head.weight");
  if (table.view(Role::head) || !head) return;
  const ParamView embedding = table.token_embedding();
  std::vector<float> values(static_cast<std::size_t>(head->count()));
  files.read_f32("lm_head.weight", values);
  check(std::ranges::equal(values, weights.subspan(static_cast<std::size_t>(embedding.offset),
                                                   static_cast<std::size_t>(embedding.count()))),
        Hint{"set \"tie_word_embeddings\": false in config.json"},
        "{}: the config ties the head to the embedding, but lm_head.weight is another tensor", files.name());
}

// "bos_token": "<s>" or {"content": "<s>", ...}
std::string named_token(const Json& config, std::string_view key) {
  const Json* value = config.find(key);
  if (value && value->is_object()) value = value->find("content");
  return value && value->is_string() ? value->as_string() : "";
}

std::optional<TokenizerFile> read_tokenizer(const fs::path& folder, const SpecialIds& special) {
  const fs::path path = tokenizer_file_in(folder), beside = folder / "tokenizer_config.json";
  if (path.empty()) return std::nullopt;
  TokenizerFile tokenizer{path.string(), read_file(path, kMaxTokenizerBytes), special};
  if (fs::is_regular_file(beside)) {
    const Json config = parse_json(read_file(beside, kMaxJsonBytes), beside.string());
    tokenizer.bos_text = named_token(config, "bos_token");
    tokenizer.eos_text = named_token(config, "eos_token");
    // A tokenizer.json says itself what is put before a text.
    const Json* adds_bos = config.find("add_bos_token");
    if (path.extension() == ".model" && adds_bos && adds_bos->is_bool())
      tokenizer.adds_bos = adds_bos->as_bool();
  }
  return tokenizer;
}

// A text, or {"name": .., "template": ..} for each of several purposes: "default" is the one for chats.
std::string template_in(const Json& value) {
  if (value.is_string()) return value.as_string();
  if (value.is_array())
    for (const Json& named : value.as_array()) {
      const Json* name = named.find("name");
      const Json* text = named.find("template");
      if (name && text && text->is_string() && *name == Json("default")) return text->as_string();
    }
  return "";
}

std::string read_chat_layout(const fs::path& folder) {
  const fs::path alone = folder / "chat_template.jinja", config = folder / "tokenizer_config.json";
  std::string text;
  if (fs::is_regular_file(alone)) {
    text = read_file(alone, kMaxJsonBytes);
  } else if (fs::is_regular_file(config)) {
    const Json json = parse_json(read_file(config, kMaxJsonBytes), config.string());
    if (const Json* value = json.find("chat_template")) text = template_in(*value);
  }
  return text.empty() ? "" : layout_of_template(text);
}

std::vector<TokenId> ends_in(const fs::path& path, const Tokenizer& tokenizer) {
  std::vector<TokenId> ids;
  const Json json = parse_json(read_file(path, kMaxJsonBytes), path.string());
  const Json* ends = json.find("eos_token_id");
  if (!ends || !ends->is_array()) return ids;
  for (const Json& id : ends->as_array())
    if (id.is_int() && id.as_int() >= 0 && id.as_int() < tokenizer.vocab_size())
      ids.push_back(static_cast<TokenId>(id.as_int()));
  return ids;
}

// The folder of a chat model calls the end of a turn its eos. What ends a text stands behind that in
// generation_config.json.
void find_end_of_text(const fs::path& folder, ModelFile& model) {
  const fs::path path = folder / "generation_config.json";
  if (model.layout.empty() || !fs::is_regular_file(path)) return;
  const auto tokenizer = open_tokenizer(model);
  std::vector<TokenId> ends = ends_in(path, *tokenizer);
  try {
    std::erase(ends, ChatLayout(*tokenizer, model.layout).end_id());
  } catch (const Error&) {  // a foreign layout, whose end nobody knows here
    return;
  }
  if (ends.empty()) return;
  model.tokenizer->special.eos = ends.front();
  model.tokenizer->eos_text.clear();
}

}  // namespace

bool is_hugging_face_folder(const fs::path& folder) {
  return fs::is_regular_file(folder / "config.json");
}

ModelFile open_hugging_face(const fs::path& folder) {
  const fs::path path = folder / "config.json";
  const HuggingFaceConfig config = parse_hugging_face_config(read_file(path, kMaxJsonBytes), path.string());
  const TensorFiles files = open_tensors(folder);
  const ParamTable table(config.model);
  const auto sources =
      config.model_type == "gpt2" ? gpt2_sources(config, table, files) : llama_sources(config, table);
  ModelFile out;
  out.path = folder;
  out.format = "huggingface";
  out.architecture = config.model_type;
  out.config = resolved(Config{config.model, {}});
  out.weights = read_weights(files, table, sources, [&](std::string_view name) {
    return is_buffer(name) || (config.model.tie_embeddings && name == "lm_head.weight");
  });
  check_tied_head(files, table, out.weights);
  out.tokenizer = read_tokenizer(folder, config.special);
  if (out.tokenizer) out.layout = read_chat_layout(folder);
  find_end_of_text(folder, out);
  for (const SafetensorsFile& file : files.files()) append_tensors(file, out.tensors);
  return out;
}

}  // namespace thimble
