#include "formats/hugging_face_config.h"

#include <algorithm>
#include <array>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/joined.h"
#include "base/json.h"
#include "formats/problems.h"

namespace thimble {

namespace {

constexpr std::size_t kShown = 60;  // bytes of a foreign value in a message

// Nothing of what the model computes depends on these: bookkeeping, generation defaults, dropout of a
// training that is over, heads of other tasks, how weights were first drawn.
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
    "max_window_layers",  // says where windows start; whether there are any is asked below
    "n_ctx",              // n_positions again
    "output_attentions",
    "output_hidden_states",
    "pad_token_id",
    "pretraining_tp",  // the same products in slices
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

// One JSON object whose every key must be taken by somebody. Problems are collected, not thrown.
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

  // Only these values are honoured; absent is the first.
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

  void refuse_the_rest() {
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

// {"rope_type": "default", "rope_theta": 10000.0}; Transformers 4 says "type" in "rope_scaling".
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
  inside.refuse_the_rest();
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
          fmt::format("{}.rope_theta ({}) and rope_theta ({}) disagree", name, *other, *theta));
    if (other) theta = other;
  }
  return theta.value_or(kDefaultTheta);
}

// Windows that are written down and not in use are harmless.
void refuse_windows(Keys& keys) {
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
  // Absent: llama has one per head; Qwen's classes have numbers of their own, which a file always writes.
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
  refuse_windows(keys);
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
  c.mlp = ActivationKind::gelu;
  c.bias = out.attention_bias = out.mlp_bias = true;
  c.tie_embeddings = keys.flag("tie_word_embeddings", true);
  keys.expect("activation_function", {"gelu_new", "gelu_pytorch_tanh"});  // one formula, two names
  keys.expect("scale_attn_weights", {true});
  keys.expect("scale_attn_by_inverse_layer_idx", {false});
  keys.expect("add_cross_attention", {false});
}

// One id, or a list of which the first is the model's own.
std::optional<TokenId> token_id(Keys& keys, std::string_view key, const ModelConfig& config) {
  const Json* value = keys.take(key);
  if (value && value->is_array() && value->size() > 0) value = &value->as_array().front();
  if (!value) return std::nullopt;
  const bool inside = value->is_int() && value->as_int() >= 0 && value->as_int() < config.vocab_size;
  if (inside) return static_cast<TokenId>(value->as_int());
  // -1, or an id of a larger vocabulary, as small test models have: it names no token of this model.
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
  keys.refuse_the_rest();
  check(problems.empty(), Hint{"only what changes nothing is passed over"}, "{}: {}", name, listed(problems));
  try {
    out.model = resolved(out.model);
  } catch (const Error& error) {
    throw Error(fmt::format("{}: {}", name, error.what()), Hint{error.hint()}, error.where());
  }
  return out;
}

}  // namespace thimble
