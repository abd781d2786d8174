#include "formats/hugging_face.h"

#include <algorithm>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/text.h"
#include "formats/weights_file.h"
#include "tokenizer/chat_layout.h"

namespace thimble {

namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxJsonBytes = 64 << 20;
constexpr std::uint64_t kMaxTokenizerBytes = 256 << 20;
constexpr const char* kIndex = "model.safetensors.index.json";

// The distinct shards named in the index. Names with a path are rejected, so that nothing outside
// the folder is read.
std::set<std::string> shard_names(const Json& map, const fs::path& folder, std::string_view index) {
  std::set<std::string> names;
  std::vector<std::string> problems;
  for (const auto& [tensor, value] : map.as_object()) {
    const std::string& name = value.as_string();
    check(!name.empty() && fs::path(name).filename() == name && name != "..",
          "{}: expected a file name without a path for {}, found '{}'", index, tensor, name);
    if (names.insert(name).second && !fs::is_regular_file(folder / name))
      problems.push_back(fmt::format("{} is missing", name));
  }
  check(problems.empty(), Hint{"download the model again"}, "{}: {}", folder.string(), listed(problems));
  return names;
}

TensorFiles open_shards(const fs::path& folder, SafetensorsFile::TensorFilter wanted,
                        const ProgressOutput& progress) {
  const std::string index = (folder / kIndex).string();
  const Json json = parse_json(read_file(index, kMaxJsonBytes), index);
  const Json* map = json.find("weight_map");
  check(map && map->is_object(), "{}: expected an object \"weight_map\"", index);
  TensorFiles files(folder.string());
  for (const std::string& name : shard_names(*map, folder, index))
    files.add(SafetensorsFile::open(folder / name, wanted, progress));
  std::vector<std::string> problems;
  for (const auto& [tensor, shard] : map->as_object())
    if (!files.find(tensor)) problems.push_back(fmt::format("{} is not in {}", tensor, shard.as_string()));
  check(problems.empty(), "{}: {}", folder.string(), listed(problems));
  return files;
}

TensorFiles open_tensors(const fs::path& folder, WeightsAs as, const ProgressOutput& progress) {
  const SafetensorsFile::TensorFilter wanted =
      as == WeightsAs::none ? +[](std::string_view) { return false; } : nullptr;
  if (fs::is_regular_file(folder / "model.safetensors")) {
    TensorFiles files(folder.string());
    files.add(SafetensorsFile::open(folder / "model.safetensors", wanted, progress));
    return files;
  }
  check(fs::is_regular_file(folder / kIndex),
        Hint{fs::exists(folder / "pytorch_model.bin")
                 ? "pickled weights are not supported: save the model as safetensors"
                 : "download the model again"},
        "{} contains neither model.safetensors nor {}", folder.string(), kIndex);
  return open_shards(folder, wanted, progress);
}

bool has_bias(const HuggingFaceConfig& config, Role role) {
  using enum Role;
  if (role == query_bias || role == key_bias || role == value_bias)
    return config.attention_bias || config.model.qkv_bias;
  if (role == attn_proj_bias) return config.attention_bias;
  if (role == mlp_fc_bias || role == mlp_gate_bias || role == mlp_up_bias || role == mlp_proj_bias)
    return config.mlp_bias;
  return true;
}

// Files saved from the bare transformer, like the original GPT-2, do not have this prefix.
constexpr std::string_view kPrefix = "transformer.";

std::vector<WeightSource> sources_of(const HuggingFaceConfig& config, const ParamTable& table,
                                     const TensorFiles& files) {
  std::vector<WeightSource> sources(table.all().size());
  for (FileTensor& tensor : file_tensors(*config.family, table, Naming::transformers)) {
    if (tensor.name.starts_with(kPrefix) && !files.find("transformer.wte.weight"))
      tensor.name.erase(0, kPrefix.size());
    std::int64_t first = 0;
    for (const Param* part : tensor.parts) {
      if (has_bias(config, part->role))
        sources[static_cast<std::size_t>(part - table.all().data())] = {
            tensor.name, tensor.dims, tensor.transposed, first, tensor.base};
      first += part->dims.front();
    }
  }
  return sources;
}

// Tables and masks that older versions saved although they can be computed from the config.
bool is_buffer(std::string_view name) {
  return name.ends_with(".rotary_emb.inv_freq") || name.ends_with(".attn.bias") ||
         name.ends_with(".attn.masked_bias");
}

// Some files repeat a tied embedding as the head. This is accepted if the values are equal.
void check_tied_head(const TensorFiles& files, const ParamTable& table, std::span<const float> weights) {
  const SafetensorsEntry* head = files.find("lm_head.weight");
  if (table.view(Role::head) || !head) return;
  const ParamView embedding = table.token_embedding();
  std::vector<float> values(static_cast<std::size_t>(head->count()));
  files.read_f32("lm_head.weight", values);
  check(std::ranges::equal(values, weights.subspan(static_cast<std::size_t>(embedding.offset),
                                                   static_cast<std::size_t>(embedding.count()))),
        Hint{"set \"tie_word_embeddings\": false in config.json"},
        "{}: the config ties the head to the embedding, but lm_head.weight differs from it", files.name());
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
    // tokenizer.json itself defines which tokens are added to a text.
    const Json* adds_bos = config.find("add_bos_token");
    if (path.extension() == ".model" && adds_bos && adds_bos->is_bool())
      tokenizer.adds_bos = adds_bos->as_bool();
  }
  return tokenizer;
}

// A string, or a list of {"name": .., "template": ..}, where "default" is the template for chats.
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

// In the folder of a chat model, eos is the end of a turn. The end of a text is listed after it in
// generation_config.json.
void find_end_of_text(const fs::path& folder, ModelFile& model) {
  const fs::path path = folder / "generation_config.json";
  if (model.layout.empty() || !fs::is_regular_file(path)) return;
  const auto tokenizer = open_tokenizer(model);
  std::vector<TokenId> ends = ends_in(path, *tokenizer);
  std::optional<TokenId> end_of_turn;
  try {
    const ChatLayout layout(*tokenizer, model.layout);
    if (!layout.is_template()) end_of_turn = layout.end_id();
  } catch (const Error&) {
    // The template is outside the subset, so its end of turn is unknown.
  }
  if (!end_of_turn) {
    // A template may write eos_token, so eos stays as it is in tokenizer_config.json.
    model.tokenizer->special.more_ends = std::move(ends);
    return;
  }
  std::erase(ends, *end_of_turn);
  if (ends.empty()) return;
  model.tokenizer->special.eos = ends.front();
  model.tokenizer->special.more_ends.assign(ends.begin() + 1, ends.end());
  model.tokenizer->eos_text.clear();
}

}  // namespace

bool is_hugging_face_folder(const fs::path& folder) {
  return fs::is_regular_file(folder / "config.json");
}

ModelFile open_hugging_face(const fs::path& folder, WeightsAs as, const ProgressOutput& progress) {
  const fs::path path = folder / "config.json";
  const HuggingFaceConfig config = parse_hugging_face_config(read_file(path, kMaxJsonBytes), path.string());
  const TensorFiles files = open_tensors(folder, as, progress);
  const ParamTable table(config.model);
  const auto sources = sources_of(config, table, files);
  ModelFile out;
  out.path = folder;
  out.format = "huggingface";
  out.architecture = config.family->name;
  out.config = resolved(Config{config.model, {}});
  const auto is_other = [&](std::string_view name) {
    return is_buffer(name) || (config.model.tie_embeddings && name == "lm_head.weight");
  };
  out.weights = read_weights(files, table, sources, is_other, as);
  if (as != WeightsAs::none) check_tied_head(files, table, out.weights);
  out.tokenizer = read_tokenizer(folder, config.special);
  if (out.tokenizer) out.layout = read_chat_layout(folder);
  find_end_of_text(folder, out);
  for (const SafetensorsFile& file : files.files()) append_tensors(file, out.tensors);
  return out;
}

}  // namespace thimble
