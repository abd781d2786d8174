// config.json of the families in architectures.h, read and written.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"
#include "base/text.h"
#include "config/keys.h"
#include "formats/architectures.h"

namespace thimble {

namespace {

using M = ModelConfig;

bool has_key(const Architecture& family, std::string_view name) {
  return std::ranges::count(family.keys, name, &FamilyKey::name) > 0;
}

constexpr std::size_t kMostLayers = 1 << 10;  // as for the key `layers`
constexpr std::size_t kShown = 60;            // bytes of a value shown in a message

// Keys that do not affect the model's output: metadata, generation defaults, training dropout,
// heads of other tasks, initialization.
constexpr std::string_view kHarmless[] = {
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_name_or_path",
    "_sliding_window_pattern",  // gemma 3: repeated by layer_types
    "architectures",
    "attention_dropout",
    "attn_pdrop",
    "cache_implementation",
    "dtype",
    "embd_pdrop",
    "gradient_checkpointing",
    "initializer_range",
    "is_llama_config",
    "max_window_layers",  // only used with windows, which are checked below
    "n_ctx",              // equal to n_positions
    "output_attentions",
    "output_hidden_states",
    "pad_token_id",
    "pretraining_tp",  // computes the same products in slices
    "reorder_and_upcast_attn",
    "resid_pdrop",
    "return_dict",
    "sliding_window_size",  // gemma 2: repeats sliding_window
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
    "task_specific_params",
    "torch_dtype",
    "transformers.js_config",
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

  void read(const FamilyKey& key, ModelConfig& config) {
    const Json* value = take(key.name);
    if (!value) {
      if (key.required) problem(key.name, value, "");
      return;
    }
    if (const auto* member = std::get_if<std::int64_t M::*>(&key.member)) {
      if (value->is_int()) return void(config.**member = value->as_int());
      problem(key.name, value, "a whole number");
    } else if (const auto* number = std::get_if<double M::*>(&key.member)) {
      if (value->is_number()) return void(config.**number = value->as_double());
      problem(key.name, value, "a number");
    } else {
      if (value->is_bool()) return void(config.*std::get<bool M::*>(key.member) = value->as_bool());
      problem(key.name, value, "true or false");
    }
  }

  std::int64_t integer(std::string_view key, std::int64_t initial) {
    const Json* value = take(key);
    if (!value) return initial;
    if (value->is_int()) return value->as_int();
    problem(key, value, "a whole number");
    return initial;
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

// In the order of RopeScaling.
constexpr std::string_view kScalings[] = {"default", "linear", "llama3", "longrope", "yarn"};

// A list of numbers as thimble's config stores it.
std::string list_of(Keys& keys, std::string_view name) {
  const Json* list = keys.take(name);
  std::string text;
  constexpr std::size_t kMostFactors = 4096;
  bool valid = list && list->is_array() && list->size() <= kMostFactors;
  for (std::size_t i = 0; valid && i < list->size(); ++i) {
    const Json& factor = list->as_array()[i];
    valid = factor.is_number();
    if (valid) text += (i > 0 ? "," : "") + value_text(factor.as_double());
  }
  if (!valid) keys.problem(name, list, "a list of numbers");
  return text;
}

Json json_of(const std::string& list) {
  Json out = Json::array();
  const std::vector<double> numbers = numbers_in(list).value();
  for (const double number : numbers) out.push(number);
  return out;
}

// {"rope_type": "default", "rope_theta": 10000.0}; Transformers 4 uses "type" in "rope_scaling".
// Returns rope_theta, if it is there.
std::optional<double> read_rope_object(const Architecture& family, Keys& keys, std::string_view name,
                                       const Json& object, ModelConfig& c) {
  Keys inside(object, fmt::format("{}.", name), keys.problems());
  std::vector<Json> kinds(std::begin(kScalings), std::end(kScalings));
  const std::size_t by_lists = static_cast<std::size_t>(RopeScaling::longrope);
  const std::vector<Json> allowed = family.partial_rope ? std::vector{kinds[0], kinds[by_lists], Json("su")}
                                                        : std::vector{kinds[0], kinds[1], kinds[2], kinds[4]};
  for (const char* key : {"rope_type", "type"}) {
    const Json* kind = inside.take(key);
    inside.expect(key, allowed);
    if (kind && family.partial_rope && *kind == Json("su")) kind = &kinds[by_lists];  // the older name
    const auto found = kind ? std::ranges::find(kinds, *kind) : kinds.end();
    if (found != kinds.end()) c.rope_scaling = static_cast<RopeScaling>(found - kinds.begin());
  }
  if (c.rope_scaling != RopeScaling::none) c.rope_factor = inside.number("factor", c.rope_factor);
  if (c.rope_scaling == RopeScaling::longrope) {
    c.rope_short_factors = list_of(inside, "short_factor");
    c.rope_long_factors = list_of(inside, "long_factor");
  }
  if (c.rope_scaling == RopeScaling::yarn) {
    if (!object.find("factor")) inside.problem("factor", nullptr, "");
    c.rope_beta_fast = inside.number("beta_fast", c.rope_beta_fast);
    c.rope_beta_slow = inside.number("beta_slow", c.rope_beta_slow);
    inside.expect("truncate", {true});
  }
  if (c.rope_scaling == RopeScaling::yarn || c.rope_scaling == RopeScaling::longrope) {
    c.rope_attention_factor = inside.number("attention_factor", c.rope_attention_factor);
    c.rope_original_context = inside.integer("original_max_position_embeddings", c.rope_original_context);
  }
  if (c.rope_scaling == RopeScaling::llama3) {
    c.rope_low_factor = inside.number("low_freq_factor", 1);
    c.rope_high_factor = inside.number("high_freq_factor", 4);
    c.rope_original_context = inside.integer("original_max_position_embeddings", c.rope_original_context);
  }
  const double share = inside.number("partial_rotary_factor", 1);
  if (share != 1 && !family.partial_rope)
    inside.problem("partial_rotary_factor", object.find("partial_rotary_factor"), "1.0 or 1");
  else if (share != 1)
    c.rope_dims = static_cast<std::int64_t>(
        std::clamp(share, 0.0, 1.0) *
        static_cast<double>(c.head_dim > 0 ? c.head_dim : c.dim / std::max<std::int64_t>(c.heads, 1)));
  const bool has_theta = inside.take("rope_theta") != nullptr;
  const double theta = inside.number("rope_theta", 0);
  inside.reject_unread_keys();
  return has_theta ? std::optional(theta) : std::nullopt;
}

// What is not given: the context before the scaling, and longrope's factor. Transformers uses the
// short factors up to that context, so it is the model's.
void complete_rope(const Architecture& family, Keys& keys, ModelConfig& c) {
  const std::int64_t initial = c.rope_scaling == RopeScaling::none || c.rope_scaling == RopeScaling::linear
                                   ? ModelConfig().rope_original_context
                                   : c.context;
  const std::int64_t outside = family.partial_rope && c.rope_scaling == RopeScaling::longrope
                                   ? keys.integer("original_max_position_embeddings", initial)
                                   : initial;
  if (c.rope_original_context == 0) c.rope_original_context = outside;
  if (c.rope_scaling != RopeScaling::longrope || c.rope_original_context < 1) return;
  if (c.rope_factor == 1)
    c.rope_factor =
        std::max(1.0, static_cast<double>(c.context) / static_cast<double>(c.rope_original_context));
  c.context = std::min(c.context, c.rope_original_context);
}

void read_rope(const Architecture& family, Keys& keys, ModelConfig& c) {
  c.rope_original_context = 0;  // not given yet
  std::optional<double> theta;
  if (keys.take("rope_theta")) theta = keys.number("rope_theta", c.rope_base);
  if (family.partial_rope && keys.take("partial_rotary_factor"))
    c.rope_dims = static_cast<std::int64_t>(std::clamp(keys.number("partial_rotary_factor", 1), 0.0, 1.0) *
                                            static_cast<double>(c.dim / std::max<std::int64_t>(c.heads, 1)));
  const bool by_layer = family.switches.local_rope_base > 0;
  if (by_layer) c.local_rope_base = keys.number("rope_local_base_freq", c.local_rope_base);
  for (const char* name : {"rope_parameters", "rope_scaling"}) {
    const Json* object = keys.take(name);
    if (!object) continue;
    if (!object->is_object()) {
      keys.problem(name, object, "an object");
      continue;
    }
    std::optional<double> other;
    const Json* global = by_layer ? object->find("full_attention") : nullptr;
    if (global && global->is_object()) {
      other = read_rope_object(family, keys, fmt::format("{}.full_attention", name), *global, c);
      const Json* local = object->find("sliding_attention");
      ModelConfig plain;
      if (local && local->is_object())
        c.local_rope_base =
            read_rope_object(family, keys, fmt::format("{}.sliding_attention", name), *local, plain)
                .value_or(c.local_rope_base);
      if (plain.rope_scaling != RopeScaling::none)
        keys.problems().push_back(fmt::format("{}.sliding_attention is scaled, expected \"default\"", name));
    } else {
      other = read_rope_object(family, keys, name, *object, c);
    }
    if (theta && other && *theta != *other)
      keys.problems().push_back(
          fmt::format("{}.rope_theta ({}) differs from rope_theta ({})", name, *other, *theta));
    if (other) theta = other;
  }
  if (theta) c.rope_base = *theta;
  complete_rope(family, keys, c);
  if (!family.skips_rope) return;
  c.nope_every = keys.integer("no_rope_layer_interval", c.nope_every);
  const Json* layers = keys.take("no_rope_layers");
  if (!layers) return;
  // A 1 for every layer that has RoPE.
  std::vector<std::int64_t> without;
  bool valid = layers->is_array() && std::cmp_greater_equal(layers->size(), c.layers);
  for (std::int64_t i = 0; valid && i < c.layers; ++i)
    if (layers->as_array()[static_cast<std::size_t>(i)] == Json(0)) without.push_back(i);
  c.nope_every = without.empty() ? 0 : without.front() + 1;
  for (std::int64_t i = 0, next = 0; valid && c.nope_every > 0 && i < c.layers; ++i)
    if ((i + 1) % c.nope_every == 0)
      valid = std::cmp_less(next, without.size()) && without[static_cast<std::size_t>(next++)] == i;
  if (!valid || (c.nope_every > 0 && std::cmp_not_equal(without.size(), c.layers / c.nope_every)))
    keys.problem("no_rope_layers", layers, "0 for every n-th layer");
}

void read_windows(const Architecture& family, Keys& keys, ModelConfig& c) {
  using enum WindowLayers;
  const bool optional = family.windows == none || family.windows == last;
  const bool in_use = keys.flag("use_sliding_window", !optional) || !optional;
  const Json* window = keys.take("sliding_window");
  const Json* types = keys.take("layer_types");
  const std::int64_t from = family.windows == last ? keys.integer("max_window_layers", c.layers) : 0;
  const std::int64_t period =
      family.windows == any ? keys.integer("sliding_window_pattern", family.period) : 0;
  if (family.windows == none && in_use && window)
    keys.problem("sliding_window", window, "null, or use_sliding_window false");
  c.window = in_use && family.windows != none ? keys.integer("sliding_window", family.switches.window) : 0;
  if (!window && family.windows != any) c.window = 0;
  if (c.window > 0) c.window_from = std::min(from, c.layers), c.global_every = period;
  if (!types) return;
  std::vector<bool> local;
  bool valid = types->is_array() && types->size() <= kMostLayers && std::cmp_equal(types->size(), c.layers);
  for (std::size_t i = 0; valid && i < types->size(); ++i) {
    local.push_back(types->as_array()[i] == Json("sliding_attention"));
    valid = local.back() || types->as_array()[i] == Json("full_attention");
  }
  const bool all_full = std::ranges::count(local, true) == 0;
  if (!valid)
    keys.problem("layer_types", types, "\"full_attention\" or \"sliding_attention\" for every layer");
  else if (all_full)
    c.window = 0;
  else if (c.window == 0)
    keys.problem("layer_types", types, "\"full_attention\" for every layer");
  else if (!set_window_layers(c, local) || (family.windows != any && c.global_every > 0))
    keys.problem("layer_types", types, "a period of layers that thimble's window settings can express");
  if (c.window == 0) c.window_from = c.global_every = 0, c.local_rope_base = 0;
}

void read_biases(const Architecture& family, Keys& keys, HuggingFaceConfig& out) {
  out.attention_bias = out.mlp_bias = out.model.bias;
  if (family.biases == BiasKeys::none) return;
  out.attention_bias = keys.flag("attention_bias", false);
  out.mlp_bias = family.biases == BiasKeys::both && keys.flag("mlp_bias", false);
  out.model.bias = out.attention_bias || out.mlp_bias;
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

const Architecture& family_named(const Json* type, std::string_view name) {
  std::vector<std::string_view> types;
  for (const Architecture& family : all_architectures()) {
    if (type && *type == Json(std::string(family.model_type))) return family;
    types.push_back(family.model_type);
  }
  fail("{}: expected model_type {}, found {}", name, joined(types, ", "),
       type ? type->dump().substr(0, kShown) : "none");
}

}  // namespace

HuggingFaceConfig parse_hugging_face_config(std::string_view json, std::string_view name) {
  const Json object = parse_json(json, name);
  check(object.is_object(), "{}: expected an object of settings", name);
  std::vector<std::string> problems;
  Keys keys(object, "", problems);
  const Architecture& family = family_named(keys.take("model_type"), name);
  HuggingFaceConfig out{&family, family.switches, {}, false, false};
  ModelConfig& model = out.model;
  for (const FamilyKey& key : family.keys) keys.read(key, model);
  // gemma: null means off. Absent keys have the family's defaults.
  for (const auto& [key, member] : {std::pair{"attn_logit_softcapping", &M::attention_softcap},
                                    std::pair{"final_logit_softcapping", &M::logit_softcap}})
    if (const Json* cap = has_key(family, key) ? object.find(key) : nullptr; cap && cap->is_null())
      model.*member = 0;
  for (const FamilyConstant& constant : family.constants) {
    const Json values = parse_json(constant.values, constant.name);
    keys.expect(constant.name, {values.as_array().begin(), values.as_array().end()});
  }
  if (model.position == PositionKind::rope) {
    read_rope(family, keys, model);
    read_windows(family, keys, model);
  }
  read_biases(family, keys, out);
  for (const std::string_view key : family.ignored) keys.take(key);
  keys.expect("is_decoder", {true, false});
  keys.expect("is_encoder_decoder", {false});
  out.special = {.bos = token_id(keys, "bos_token_id", model),
                 .eos = token_id(keys, "eos_token_id", model),
                 .unk = {},
                 .pad = {}};
  keys.reject_unread_keys();
  check(problems.empty(), Hint{"thimble rejects settings that it does not support; use a model without them"},
        "{}: {}", name, listed(problems));
  try {
    model = resolved(model);
  } catch (const Error& error) {
    throw Error(fmt::format("{}: {}", name, error.what()), Hint{error.hint()}, error.where());
  }
  return out;
}

namespace {

Json rope_json(const Architecture& family, const ModelConfig& c) {
  Json rope = Json::object()
                  .set("rope_type", kScalings[static_cast<std::size_t>(c.rope_scaling)])
                  .set("rope_theta", c.rope_base);
  if (c.rope_scaling != RopeScaling::none) rope.set("factor", c.rope_factor);
  if (c.rope_scaling == RopeScaling::llama3)
    rope.set("low_freq_factor", c.rope_low_factor).set("high_freq_factor", c.rope_high_factor);
  if (c.rope_scaling == RopeScaling::yarn)
    rope.set("beta_fast", c.rope_beta_fast).set("beta_slow", c.rope_beta_slow);
  if (c.rope_scaling == RopeScaling::longrope)
    rope.set("short_factor", json_of(c.rope_short_factors)).set("long_factor", json_of(c.rope_long_factors));
  if (c.rope_attention_factor > 0) rope.set("attention_factor", c.rope_attention_factor);
  if (c.rope_scaling != RopeScaling::none && c.rope_scaling != RopeScaling::linear)
    rope.set("original_max_position_embeddings", c.rope_original_context);
  if (family.partial_rope)
    rope.set("partial_rotary_factor", static_cast<double>(c.rope_dims) / static_cast<double>(c.head_dim));
  return rope;
}

void write_rope(const Architecture& family, const ModelConfig& c, Json& config) {
  // Transformers 4 reads rope_theta and rope_scaling, Transformers 5 rope_parameters.
  const Json rope = rope_json(family, c);
  config.set("rope_theta", c.rope_base);
  const bool by_lists = c.rope_scaling == RopeScaling::longrope;
  if (by_lists)  // Transformers 4 accepts no other keys
    config.set("rope_scaling", Json::object()
                                   .set("type", "longrope")
                                   .set("short_factor", rope.at("short_factor"))
                                   .set("long_factor", rope.at("long_factor")));
  else if (c.rope_scaling != RopeScaling::none)
    config.set("rope_scaling", rope);
  if (family.partial_rope) {
    config.set("partial_rotary_factor", rope.at("partial_rotary_factor"));
    config.set("original_max_position_embeddings", by_lists ? c.rope_original_context : c.context);
  }
  if (family.switches.local_rope_base > 0) {
    const double local = c.local_rope_base > 0 ? c.local_rope_base : c.rope_base;
    config.set("rope_local_base_freq", local);
    config.set(
        "rope_parameters",
        Json::object()
            .set("full_attention", rope)
            .set("sliding_attention", Json::object().set("rope_type", "default").set("rope_theta", local)));
  } else {
    config.set("rope_parameters", rope);
  }
  if (!family.skips_rope) return;
  Json layers = Json::array();
  for (std::int64_t layer = 0; layer < c.layers; ++layer) layers.push(c.has_rope(layer) ? 1 : 0);
  config.set("no_rope_layer_interval", c.nope_every).set("no_rope_layers", std::move(layers));
}

void write_windows(const Architecture& family, const ModelConfig& c, Json& config) {
  using enum WindowLayers;
  bool any_local = false;
  Json types = Json::array();
  for (std::int64_t layer = 0; layer < c.layers; ++layer) {
    any_local = any_local || c.is_local(layer);
    types.push(c.is_local(layer) ? "sliding_attention" : "full_attention");
  }
  const Json window = any_local ? Json(c.window) : Json();
  switch (family.windows) {
    case none:
      break;
    case all:
      config.set("sliding_window", window);
      break;
    case last:
      config.set("use_sliding_window", any_local).set("sliding_window", window);
      if (any_local) config.set("max_window_layers", c.window_from).set("layer_types", std::move(types));
      break;
    case any:  // Transformers needs a number
      config.set("sliding_window", c.window > 0 ? c.window : c.context).set("layer_types", std::move(types));
      if (family.switches.local_rope_base > 0 && c.global_every > 0)
        config.set("sliding_window_pattern", c.global_every);
      break;
  }
}

}  // namespace

Json hugging_face_config(const Architecture& family, const ModelConfig& given) {
  ModelConfig c = given;
  if (c.query_scalar == 0) c.query_scalar = static_cast<double>(c.head_dim);
  c.context = scaled_context(c);
  Json config = Json::object()
                    .set("architectures", Json::array({family.class_name}))
                    .set("model_type", family.model_type);
  for (const FamilyKey& key : family.keys)
    std::visit(
        [&](auto member) {
          const auto value = c.*member;
          const auto whole = static_cast<std::int64_t>(value);
          config.set(std::string(key.name),
                     key.whole && static_cast<double>(whole) == static_cast<double>(value) ? Json(whole)
                                                                                           : Json(value));
        },
        key.member);
  for (const auto& [key, cap] : {std::pair{"attn_logit_softcapping", c.attention_softcap},
                                 std::pair{"final_logit_softcapping", c.logit_softcap}})
    if (has_key(family, key) && cap == 0) config.set(key, nullptr);
  for (const FamilyConstant& constant : family.constants)
    if (constant.name != "rope_interleaved")
      config.set(std::string(constant.name), parse_json(constant.values, constant.name).as_array().front());
  if (c.position == PositionKind::rope) {
    write_rope(family, c, config);
    write_windows(family, c, config);
  }
  if (family.biases != BiasKeys::none) config.set("attention_bias", c.bias);
  if (family.biases == BiasKeys::both) config.set("mlp_bias", c.bias);
  return config;
}

}  // namespace thimble
