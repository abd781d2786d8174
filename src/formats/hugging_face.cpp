#include "formats/hugging_face.h"

#include <algorithm>
#include <array>
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
  const auto linear = [&](std::string_view name, std::int64_t in, std::int64_t out, std::int64_t first = 0) {
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
    case head:  // not prefixed: it is outside the transformer module
      return {.name = "lm_head.weight", .dims = param.dims};
    case query:
      return linear("attn.c_attn.weight", C, 3 * C);
    case key:
      return linear("attn.c_attn.weight", C, 3 * C, C);
    case value:
      return linear("attn.c_attn.weight", C, 3 * C, 2 * C);
    case query_bias:
      return part(0);
    case key_bias:
      return part(C);
    case value_bias:
      return part(2 * C);
    case attn_proj:
      return linear("attn.c_proj.weight", C, C);
    case attn_proj_bias:
      return block("attn.c_proj.bias");
    case mlp_fc:
      return linear("mlp.c_fc.weight", C, F);
    case mlp_fc_bias:
      return block("mlp.c_fc.bias");
    case mlp_proj:
      return linear("mlp.c_proj.weight", F, C);
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
      fail("[hugging face] GPT-2 has no tensor for {}", param.name);
  }
}

std::vector<WeightSource> gpt2_sources(const HuggingFaceConfig& config, const ParamTable& table,
                                       const TensorFiles& files) {
  // Files saved from the bare transformer, like the original GPT-2, do not have this prefix.
  const char* prefix = files.find("transformer.wte.weight") ? "transformer." : "";
  std::vector<WeightSource> sources;
  for (const Param& param : table.all()) sources.push_back(gpt2_source(config.model, param, prefix));
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
  const auto sources =
      config.model_type == "gpt2" ? gpt2_sources(config, table, files) : llama_sources(config, table);
  ModelFile out;
  out.path = folder;
  out.format = "huggingface";
  out.architecture = config.model_type;
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

namespace {

constexpr std::size_t kShown = 60;  // bytes of a value shown in a message

// Keys that do not affect the model's output: metadata, generation defaults, training dropout,
// heads of other tasks, initialization.
constexpr std::string_view kHarmless[] = {
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_name_or_path",
    "architectures",
    "attention_dropout",
    "attn_pdrop",
    "dtype",
    "embd_pdrop",
    "gradient_checkpointing",
    "initializer_range",
    "max_window_layers",  // only used with windows, which are checked below
    "n_ctx",              // equal to n_positions
    "output_attentions",
    "output_hidden_states",
    "pad_token_id",
    "pretraining_tp",  // computes the same products in slices
    "reorder_and_upcast_attn",
    "resid_pdrop",
    "return_dict",
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
    "task_specific_params",
    "torch_dtype",
    "transformers_version",
    "unsloth_fixed",
    "unsloth_version",
    "use_cache",
};

// Reads a JSON object and reports keys that were not read. Problems are collected, not thrown.
class Keys {
 public:
  Keys(const Json& object, std::string prefix, std::vector<std::string>& problems)
      : object_(object), prefix_(std::move(prefix)), problems_(problems) {}

  const Json* take(std::string_view key) {
    taken_.emplace(key);
    const Json* value = object_.find(key);
    return value && value->is_null() ? nullptr : value;
  }

  std::int64_t integer(std::string_view key, std::optional<std::int64_t> initial = {}) {
    const Json* value = take(key);
    if (!value && initial) return *initial;
    if (value && value->is_int()) return value->as_int();
    problem(key, value, "a whole number");
    return 1;
  }

  double number(std::string_view key, double initial) {
    const Json* value = take(key);
    if (!value) return initial;
    if (value->is_number()) return value->as_double();
    problem(key, value, "a number");
    return initial;
  }

  bool flag(std::string_view key, bool initial) {
    const Json* value = take(key);
    if (!value) return initial;
    if (value->is_bool()) return value->as_bool();
    problem(key, value, "true or false");
    return initial;
  }

  // Accepts only these values; an absent key counts as the first.
  void expect(std::string_view key, const std::vector<Json>& allowed) {
    const Json* value = take(key);
    if (!value || std::ranges::find(allowed, *value) != allowed.end()) return;
    std::vector<std::string> texts;
    for (const Json& one : allowed) texts.push_back(one.dump());
    problem(key, value, joined(texts, " or "));
  }

  void problem(std::string_view key, const Json* value, std::string_view expected) {
    if (!value)
      problems_.push_back(fmt::format("{}{} is missing", prefix_, key));
    else
      problems_.push_back(
          fmt::format("{}{} is {}, expected {}", prefix_, key, value->dump().substr(0, kShown), expected));
  }

  void reject_unread_keys() {
    for (const auto& [key, value] : object_.as_object())
      if (!taken_.contains(key) && !value.is_null() && !std::ranges::count(kHarmless, key))
        problems_.push_back(fmt::format("{}{} is not supported", prefix_, key.substr(0, kShown)));
  }

  std::vector<std::string>& problems() { return problems_; }

 private:
  const Json& object_;
  std::string prefix_;
  std::vector<std::string>& problems_;
  std::set<std::string, std::less<>> taken_;
};

// {"rope_type": "default", "rope_theta": 10000.0}; Transformers 4 uses "type" in "rope_scaling".
std::optional<double> theta_inside(Keys& keys, std::string_view name) {
  const Json* object = keys.take(name);
  if (!object) return std::nullopt;
  if (!object->is_object()) {
    keys.problem(name, object, "an object");
    return std::nullopt;
  }
  Keys inside(*object, fmt::format("{}.", name), keys.problems());
  inside.expect("rope_type", {"default"});
  inside.expect("type", {"default"});
  inside.expect("partial_rotary_factor", {1.0, 1});
  const bool has_theta = inside.take("rope_theta") != nullptr;
  const double theta = inside.number("rope_theta", 0);
  inside.reject_unread_keys();
  return has_theta ? std::optional(theta) : std::nullopt;
}

double rope_theta(Keys& keys) {
  constexpr double kDefaultTheta = 10000;
  std::optional<double> theta;
  if (keys.take("rope_theta")) theta = keys.number("rope_theta", kDefaultTheta);
  for (const char* name : {"rope_parameters", "rope_scaling"}) {
    const std::optional<double> other = theta_inside(keys, name);
    if (theta && other && *theta != *other)
      keys.problems().push_back(
          fmt::format("{}.rope_theta ({}) differs from rope_theta ({})", name, *other, *theta));
    if (other) theta = other;
  }
  return theta.value_or(kDefaultTheta);
}

// A window that is configured but not in use is accepted.
void reject_windows(Keys& keys) {
  const bool in_use = keys.flag("use_sliding_window", false);
  const Json* window = keys.take("sliding_window");
  if (in_use && window) keys.problem("sliding_window", window, "null, or use_sliding_window false");
  const Json* types = keys.take("layer_types");
  if (!types) return;
  const bool full = types->is_array() && std::ranges::all_of(types->as_array(), [](const Json& type) {
                      return type == Json("full_attention");
                    });
  if (!full) keys.problem("layer_types", types, "\"full_attention\" for every layer");
}

void read_llama_family(Keys& keys, HuggingFaceConfig& out) {
  ModelConfig& c = out.model;
  const bool qwen2 = out.model_type == "qwen2", qwen3 = out.model_type == "qwen3";
  c.vocab_size = keys.integer("vocab_size");
  c.context = keys.integer("max_position_embeddings");
  c.layers = keys.integer("num_hidden_layers");
  c.dim = keys.integer("hidden_size");
  c.heads = keys.integer("num_attention_heads");
  // Defaults when absent: llama has one per head. Qwen's classes have other defaults, but their
  // files always contain the key.
  c.kv_heads = keys.integer("num_key_value_heads", qwen2 || qwen3 ? std::nullopt : std::optional(c.heads));
  c.head_dim = keys.integer("head_dim", qwen3 ? 128 : 0);
  c.mlp_hidden = keys.integer("intermediate_size");
  c.norm_eps = keys.number("rms_norm_eps", 1e-6);
  c.tie_embeddings = keys.flag("tie_word_embeddings", false);
  c.rope_base = rope_theta(keys);
  c.qk_norm = qwen3;
  c.qkv_bias = qwen2;
  out.attention_bias = !qwen2 && keys.flag("attention_bias", false);
  out.mlp_bias = out.model_type == "llama" && keys.flag("mlp_bias", false);
  c.bias = out.attention_bias || out.mlp_bias;
  keys.expect("hidden_act", {"silu", "swish"});
  reject_windows(keys);
}

void read_gpt2(Keys& keys, HuggingFaceConfig& out) {
  ModelConfig& c = out.model;
  c.vocab_size = keys.integer("vocab_size");
  c.context = keys.integer("n_positions");
  c.layers = keys.integer("n_layer");
  c.dim = keys.integer("n_embd");
  c.heads = keys.integer("n_head");
  c.mlp_hidden = keys.integer("n_inner", 0);
  c.norm = NormKind::layer;
  c.norm_eps = keys.number("layer_norm_epsilon", 1e-5);
  c.position = PositionKind::learned;
  c.mlp = MlpKind::gelu;
  c.bias = out.attention_bias = out.mlp_bias = true;
  c.tie_embeddings = keys.flag("tie_word_embeddings", true);
  keys.expect("activation_function", {"gelu_new", "gelu_pytorch_tanh"});  // one formula
  keys.expect("scale_attn_weights", {true});
  keys.expect("scale_attn_by_inverse_layer_idx", {false});
  keys.expect("add_cross_attention", {false});
}

// An id, or a list whose first entry is the model's own.
std::optional<TokenId> token_id(Keys& keys, std::string_view key, const ModelConfig& config) {
  const Json* value = keys.take(key);
  if (value && value->is_array() && value->size() > 0) value = &value->as_array().front();
  if (!value) return std::nullopt;
  const bool inside = value->is_int() && value->as_int() >= 0 && value->as_int() < config.vocab_size;
  if (inside) return static_cast<TokenId>(value->as_int());
  // Ignores -1 and ids outside the vocabulary, which occur in small test models.
  if (!value->is_int()) keys.problem(key, value, "a token id");
  return std::nullopt;
}

}  // namespace

HuggingFaceConfig parse_hugging_face_config(std::string_view json, std::string_view name) {
  const Json object = parse_json(json, name);
  check(object.is_object(), "{}: expected an object of settings", name);
  std::vector<std::string> problems;
  Keys keys(object, "", problems);
  HuggingFaceConfig out{};
  const Json* type = keys.take("model_type");
  out.model_type = type && type->is_string() ? type->as_string() : "";
  constexpr std::array<std::string_view, 4> kTypes = {"llama", "qwen2", "qwen3", "gpt2"};
  check(std::ranges::count(kTypes, out.model_type) > 0, "{}: expected model_type {}, found {}", name,
        joined(kTypes, ", "), type ? type->dump().substr(0, kShown) : "none");
  if (out.model_type == "gpt2")
    read_gpt2(keys, out);
  else
    read_llama_family(keys, out);
  keys.expect("is_decoder", {true, false});
  keys.expect("is_encoder_decoder", {false});
  out.special = {.bos = token_id(keys, "bos_token_id", out.model),
                 .eos = token_id(keys, "eos_token_id", out.model),
                 .unk = {},
                 .pad = {}};
  keys.reject_unread_keys();
  check(problems.empty(), Hint{"thimble rejects settings that it does not support; use a model without them"},
        "{}: {}", name, listed(problems));
  try {
    out.model = resolved(out.model);
  } catch (const Error& error) {
    throw Error(fmt::format("{}: {}", name, error.what()), Hint{error.hint()}, error.where());
  }
  return out;
}

}  // namespace thimble
