#include "formats/architectures.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>

#include "base/error.h"
#include "base/text.h"
#include "config/keys.h"
#include "formats/gguf_model.h"

namespace thimble {

namespace {

using M = ModelConfig;
using enum Role;

constexpr FamilyKey kLlamaKeys[] = {
    {"vocab_size", &M::vocab_size, true},
    {"max_position_embeddings", &M::context, true},
    {"num_hidden_layers", &M::layers, true},
    {"hidden_size", &M::dim, true},
    {"num_attention_heads", &M::heads, true},
    {"num_key_value_heads", &M::kv_heads},
    {"head_dim", &M::head_dim},
    {"intermediate_size", &M::mlp_hidden, true},
    {"rms_norm_eps", &M::norm_eps},
    {"tie_word_embeddings", &M::tie_embeddings},
};

// The defaults of Qwen's classes are no common values, but their files always contain the key.
constexpr FamilyKey kQwenKeys[] = {
    {"vocab_size", &M::vocab_size, true},
    {"max_position_embeddings", &M::context, true},
    {"num_hidden_layers", &M::layers, true},
    {"hidden_size", &M::dim, true},
    {"num_attention_heads", &M::heads, true},
    {"num_key_value_heads", &M::kv_heads, true},
    {"head_dim", &M::head_dim},
    {"intermediate_size", &M::mlp_hidden, true},
    {"rms_norm_eps", &M::norm_eps},
    {"tie_word_embeddings", &M::tie_embeddings},
};

// The head size is hidden_size / num_attention_heads.
constexpr FamilyKey kPhiKeys[] = {
    {"vocab_size", &M::vocab_size, true},        {"max_position_embeddings", &M::context, true},
    {"num_hidden_layers", &M::layers, true},     {"hidden_size", &M::dim, true},
    {"num_attention_heads", &M::heads, true},    {"num_key_value_heads", &M::kv_heads},
    {"intermediate_size", &M::mlp_hidden, true}, {"rms_norm_eps", &M::norm_eps},
    {"tie_word_embeddings", &M::tie_embeddings},
};

constexpr FamilyKey kGemmaKeys[] = {
    {"vocab_size", &M::vocab_size, true},
    {"max_position_embeddings", &M::context, true},
    {"num_hidden_layers", &M::layers, true},
    {"hidden_size", &M::dim, true},
    {"num_attention_heads", &M::heads, true},
    {"num_key_value_heads", &M::kv_heads, true},
    {"head_dim", &M::head_dim},
    {"intermediate_size", &M::mlp_hidden, true},
    {"rms_norm_eps", &M::norm_eps},
    {"tie_word_embeddings", &M::tie_embeddings},
    {"query_pre_attn_scalar", &M::query_scalar, false, true},
    {"attn_logit_softcapping", &M::attention_softcap},
    {"final_logit_softcapping", &M::logit_softcap},
};

constexpr FamilyKey kGpt2Keys[] = {
    {"vocab_size", &M::vocab_size, true}, {"n_positions", &M::context, true},
    {"n_layer", &M::layers, true},        {"n_embd", &M::dim, true},
    {"n_head", &M::heads, true},          {"n_inner", &M::mlp_hidden},
    {"layer_norm_epsilon", &M::norm_eps}, {"tie_word_embeddings", &M::tie_embeddings},
};

constexpr FamilyConstant kSilu[] = {{"hidden_act", R"(["silu", "swish"])"},
                                    {"rope_interleaved", "[false]"}};  // in files of SmolLM 2
constexpr FamilyConstant kGemmaConstants[] = {{"hidden_activation", R"(["gelu_pytorch_tanh"])"},
                                              {"attention_bias", "[false]"},
                                              {"use_bidirectional_attention", "[false]"}};
constexpr FamilyConstant kGpt2Constants[] = {
    {"activation_function", R"(["gelu_new", "gelu_pytorch_tanh"])"},  // one formula
    {"scale_attn_weights", "[true]"},
    {"scale_attn_by_inverse_layer_idx", "[false]"},
    {"add_cross_attention", "[false]"}};

// auto_map names code that Transformers has built in.
constexpr std::string_view kPhiIgnored[] = {"auto_map", "original_max_position_embeddings"};
constexpr std::string_view kGemmaIgnored[] = {"hidden_act"};  // hidden_activation is read instead

constexpr std::string_view kPhiQkv = "model.layers.{}.self_attn.qkv_proj.weight";
constexpr std::string_view kGateUp = "model.layers.{}.mlp.gate_up_proj.weight";
constexpr FamilyTensor kPhiTensors[] = {
    {query, kPhiQkv, "blk.{}.attn_qkv.weight"}, {key, kPhiQkv, "blk.{}.attn_qkv.weight"},
    {value, kPhiQkv, "blk.{}.attn_qkv.weight"}, {mlp_gate, kGateUp, "blk.{}.ffn_up.weight"},
    {mlp_up, kGateUp, "blk.{}.ffn_up.weight"},
};

constexpr FamilyTensor kGemmaTensors[] = {
    {attn_post_norm, "model.layers.{}.post_attention_layernorm.weight", "blk.{}.post_attention_norm.weight"},
    {mlp_norm, "model.layers.{}.pre_feedforward_layernorm.weight", "blk.{}.ffn_norm.weight"},
    {mlp_post_norm, "model.layers.{}.post_feedforward_layernorm.weight", "blk.{}.post_ffw_norm.weight"},
};

constexpr FamilyTensor kGpt2Tensors[] = {
    {token_embedding, "transformer.wte.weight", "token_embd.weight"},
    {position_embedding, "transformer.wpe.weight", "position_embd.weight"},
    {query, "transformer.h.{}.attn.c_attn.weight", "blk.{}.attn_qkv.weight"},
    {key, "transformer.h.{}.attn.c_attn.weight", "blk.{}.attn_qkv.weight"},
    {value, "transformer.h.{}.attn.c_attn.weight", "blk.{}.attn_qkv.weight"},
    {query_bias, "transformer.h.{}.attn.c_attn.bias", "blk.{}.attn_qkv.bias"},
    {key_bias, "transformer.h.{}.attn.c_attn.bias", "blk.{}.attn_qkv.bias"},
    {value_bias, "transformer.h.{}.attn.c_attn.bias", "blk.{}.attn_qkv.bias"},
    {attn_proj, "transformer.h.{}.attn.c_proj.weight", "blk.{}.attn_output.weight"},
    {attn_proj_bias, "transformer.h.{}.attn.c_proj.bias", "blk.{}.attn_output.bias"},
    {mlp_fc, "transformer.h.{}.mlp.c_fc.weight", "blk.{}.ffn_up.weight"},
    {mlp_fc_bias, "transformer.h.{}.mlp.c_fc.bias", "blk.{}.ffn_up.bias"},
    {mlp_proj, "transformer.h.{}.mlp.c_proj.weight", "blk.{}.ffn_down.weight"},
    {mlp_proj_bias, "transformer.h.{}.mlp.c_proj.bias", "blk.{}.ffn_down.bias"},
    {attn_norm, "transformer.h.{}.ln_1.weight", "blk.{}.attn_norm.weight"},
    {attn_norm_bias, "transformer.h.{}.ln_1.bias", "blk.{}.attn_norm.bias"},
    {mlp_norm, "transformer.h.{}.ln_2.weight", "blk.{}.ffn_norm.weight"},
    {mlp_norm_bias, "transformer.h.{}.ln_2.bias", "blk.{}.ffn_norm.bias"},
    {final_norm, "transformer.ln_f.weight", "output_norm.weight"},
    {final_norm_bias, "transformer.ln_f.bias", "output_norm.bias"},
};

ModelConfig switches(void (*set)(ModelConfig&)) {
  ModelConfig config;
  config.norm_eps = 1e-6;
  config.tie_embeddings = false;
  if (set) set(config);
  return config;
}

void set_gemma(ModelConfig& c) {
  c.mlp = MlpKind::geglu;
  c.post_norm = c.embed_scale = c.tie_embeddings = true;
  c.head_dim = 256;
  c.query_scalar = 256;
}

std::vector<Architecture> make_architectures() {
  return {
      {.name = "llama",
       .model_type = "llama",
       .class_name = "LlamaForCausalLM",
       .gguf = "llama",
       .switches = switches(nullptr),
       .keys = kLlamaKeys,
       .constants = kSilu,
       .biases = BiasKeys::both,
       .neighbours = true},
      {.name = "mistral",
       .model_type = "mistral",
       .class_name = "MistralForCausalLM",
       .gguf = "llama",
       .switches = switches(nullptr),
       .keys = kLlamaKeys,
       .constants = kSilu,
       .windows = WindowLayers::all,
       .neighbours = true},
      {.name = "qwen2",
       .model_type = "qwen2",
       .class_name = "Qwen2ForCausalLM",
       .gguf = "qwen2",
       .switches = switches([](ModelConfig& c) { c.qkv_bias = true; }),
       .keys = kQwenKeys,
       .constants = kSilu,
       .windows = WindowLayers::last},
      {.name = "qwen3",
       .model_type = "qwen3",
       .class_name = "Qwen3ForCausalLM",
       .gguf = "qwen3",
       .switches = switches([](ModelConfig& c) {
         c.qk_norm = true;
         c.head_dim = 128;
       }),
       .keys = kQwenKeys,
       .constants = kSilu,
       .windows = WindowLayers::last,
       .biases = BiasKeys::attention},
      {.name = "smollm3",
       .model_type = "smollm3",
       .class_name = "SmolLM3ForCausalLM",
       .gguf = "smollm3",
       .switches = switches([](ModelConfig& c) {
         c.tie_embeddings = true;
         c.rope_base = 2e6;
         c.nope_every = 4;
       }),
       .keys = kLlamaKeys,
       .constants = kSilu,
       .biases = BiasKeys::both,
       .skips_rope = true,
       .neighbours = true,
       .gguf_nope_every = 4},
      {.name = "phi3",
       .model_type = "phi3",
       .class_name = "Phi3ForCausalLM",
       .gguf = "phi3",
       .switches = switches([](ModelConfig& c) { c.norm_eps = 1e-5; }),
       .keys = kPhiKeys,
       .constants = kSilu,
       .ignored = kPhiIgnored,
       .tensors = kPhiTensors,
       .windows = WindowLayers::all,
       .partial_rope = true},
      {.name = "gemma2",
       .model_type = "gemma2",
       .class_name = "Gemma2ForCausalLM",
       .gguf = "gemma2",
       .switches = switches([](ModelConfig& c) {
         set_gemma(c);
         c.attention_softcap = 50;
         c.logit_softcap = 30;
         c.window = 4096;
       }),
       .keys = kGemmaKeys,
       .constants = kGemmaConstants,
       .ignored = kGemmaIgnored,
       .tensors = kGemmaTensors,
       .windows = WindowLayers::any,
       .period = 2,
       .gain_base = 1,
       .gguf_period = 2,
       .gguf_scale_layers = 46},
      {.name = "gemma3",
       .model_type = "gemma3_text",
       .class_name = "Gemma3ForCausalLM",
       .gguf = "gemma3",
       .switches = switches([](ModelConfig& c) {
         set_gemma(c);
         c.qk_norm = true;
         c.rope_base = 1e6;
         c.local_rope_base = 1e4;
         c.window = 4096;
       }),
       .keys = kGemmaKeys,
       .constants = kGemmaConstants,
       .ignored = kGemmaIgnored,
       .tensors = kGemmaTensors,
       .windows = WindowLayers::any,
       .period = 6,
       .gain_base = 1,
       .gguf_period = 6,
       .gguf_scale_layers = 62},
      {.name = "gpt2",
       .model_type = "gpt2",
       .class_name = "GPT2LMHeadModel",
       .gguf = "gpt2",
       .switches = switches([](ModelConfig& c) {
         c.norm = NormKind::layer;
         c.norm_eps = 1e-5;
         c.position = PositionKind::learned;
         c.mlp = MlpKind::gelu;
         c.bias = c.tie_embeddings = true;
       }),
       .keys = kGpt2Keys,
       .constants = kGpt2Constants,
       .tensors = kGpt2Tensors,
       .transposed = true},
  };
}

// The config without settings that have no effect.
ModelConfig normalized(ModelConfig c) {
  const ModelConfig initial;
  if (c.window >= c.context) c.window = 0;
  if (c.window == 0) c.window_from = c.global_every = 0, c.local_rope_base = 0;
  if (c.bias) c.qkv_bias = false;
  if (c.position != PositionKind::rope) {
    c.rope_base = initial.rope_base, c.rope_direction = 1, c.nope_every = 0;
    c.rope_scaling = RopeScaling::none;
  }
  if (c.rope_scaling == RopeScaling::none) c.rope_factor = initial.rope_factor;
  if (c.rope_scaling != RopeScaling::llama3)
    c.rope_low_factor = initial.rope_low_factor, c.rope_high_factor = initial.rope_high_factor;
  if (c.rope_scaling == RopeScaling::none || c.rope_scaling == RopeScaling::linear)
    c.rope_original_context = initial.rope_original_context;
  if (c.rope_scaling != RopeScaling::yarn)
    c.rope_beta_fast = initial.rope_beta_fast, c.rope_beta_slow = initial.rope_beta_slow;
  if (c.rope_scaling != RopeScaling::longrope) c.rope_short_factors.clear(), c.rope_long_factors.clear();
  if (c.rope_scaling != RopeScaling::yarn && c.rope_scaling != RopeScaling::longrope)
    c.rope_attention_factor = 0;
  if (c.query_scalar == static_cast<double>(c.head_dim)) c.query_scalar = 0;
  if (c.loop_count == 0) c.loop_first = c.loop_last = 0;
  if (c.q_gain == GainKind::none) c.q_gain_init = initial.q_gain_init;
  if (c.bigram_buckets == 0) c.bigram_dim = 0;
  // Only training reads these.
  c.dropout = 0, c.isolate = true, c.init = initial.init;
  c.init_std = initial.init_std, c.embed_init_std = initial.embed_init_std;
  return c;
}

// The family's model that is most like `c` (normalized).
ModelConfig closest(const Architecture& family, const ModelConfig& c) {
  ModelConfig out = family.switches;
  out.head_dim = c.dim / c.heads;  // unless there are keys for them
  out.kv_heads = c.heads;
  for (const FamilyKey& key : family.keys)
    std::visit([&](auto member) { out.*member = c.*member; }, key.member);
  if (out.position == PositionKind::rope) {
    out.rope_dims = family.partial_rope ? c.rope_dims : c.head_dim;
    out.rope_base = c.rope_base, out.rope_scaling = c.rope_scaling, out.rope_factor = c.rope_factor;
    out.rope_low_factor = c.rope_low_factor, out.rope_high_factor = c.rope_high_factor;
    out.rope_original_context = c.rope_original_context;
    out.rope_beta_fast = c.rope_beta_fast, out.rope_beta_slow = c.rope_beta_slow;
    out.rope_attention_factor = c.rope_attention_factor;
    out.rope_short_factors = c.rope_short_factors, out.rope_long_factors = c.rope_long_factors;
    const bool by_lists = c.rope_scaling == RopeScaling::longrope;
    if (family.partial_rope != by_lists) out.rope_scaling = RopeScaling::none;
    if (family.switches.local_rope_base > 0) out.local_rope_base = c.local_rope_base;
    if (family.skips_rope) out.nope_every = c.nope_every;
  }
  out.window = family.windows == WindowLayers::none ? 0 : c.window;
  if (family.windows == WindowLayers::last || family.windows == WindowLayers::any)
    out.window_from = c.window_from;
  if (family.windows == WindowLayers::any) out.global_every = c.global_every;
  if (family.biases != BiasKeys::none) out.bias = c.bias;
  return normalized(out);
}

}  // namespace

std::span<const Architecture> all_architectures() {
  static const std::vector<Architecture> rows = make_architectures();
  return rows;
}

std::vector<std::string> reasons_against(const Architecture& family, const ModelConfig& config) {
  Config given, best;
  given.model = normalized(config);
  best.model = closest(family, given.model);
  // Otherwise it is a llama, which more programs read.
  const bool skips = !family.skips_rope || given.model.nope_every > 0;
  std::vector<std::string> reasons;
  for (const Key& key : all_keys())
    if (key.of_model() && key.get(given) != key.get(best))
      reasons.push_back(fmt::format("{} = {}", key.name, value_text(key.get(given))));
  if (!skips) reasons.emplace_back("nope_every = 0");
  return reasons;
}

const Architecture* family_of(const ModelConfig& config, std::string_view preferred) {
  const Architecture* found = nullptr;
  for (const Architecture& family : all_architectures()) {
    if ((found && family.name != preferred) || !reasons_against(family, config).empty()) continue;
    found = &family;
  }
  return found;
}

std::vector<std::string> reasons_against_families(const ModelConfig& config) {
  std::optional<std::vector<std::string>> fewest;
  for (const Architecture& family : all_architectures()) {
    std::vector<std::string> reasons = reasons_against(family, config);
    if (!fewest || reasons.size() < fewest->size()) fewest = std::move(reasons);
  }
  return fewest.value();
}

// Tensors

namespace {

constexpr GgufName kTensorNames[] = {
    {token_embedding, "token_embd.weight"},
    {head, "output.weight"},
    {final_norm, "output_norm.weight"},
    {attn_norm, "blk.{}.attn_norm.weight"},
    {query, "blk.{}.attn_q.weight"},
    {query_bias, "blk.{}.attn_q.bias"},
    {key, "blk.{}.attn_k.weight"},
    {key_bias, "blk.{}.attn_k.bias"},
    {value, "blk.{}.attn_v.weight"},
    {value_bias, "blk.{}.attn_v.bias"},
    {query_norm, "blk.{}.attn_q_norm.weight"},
    {key_norm, "blk.{}.attn_k_norm.weight"},
    {attn_proj, "blk.{}.attn_output.weight"},
    {attn_proj_bias, "blk.{}.attn_output.bias"},
    {mlp_norm, "blk.{}.ffn_norm.weight"},
    {mlp_gate, "blk.{}.ffn_gate.weight"},
    {mlp_gate_bias, "blk.{}.ffn_gate.bias"},
    {mlp_up, "blk.{}.ffn_up.weight"},
    {mlp_up_bias, "blk.{}.ffn_up.bias"},
    {mlp_proj, "blk.{}.ffn_down.weight"},
    {mlp_proj_bias, "blk.{}.ffn_down.bias"},
};

}  // namespace

std::span<const GgufName> gguf_names() {
  return kTensorNames;
}

std::string GgufName::of(int layer) const {
  return fmt::format(fmt::runtime(name), layer);
}

std::string gguf_name(const Param& param) {
  for (const GgufName& known : kTensorNames)
    if (known.role == param.role) return known.of(param.layer);
  fail("[gguf] llama.cpp has no name for {}", param.name);
}

namespace {

bool is_gain(Role role) {
  return role == attn_norm || role == mlp_norm || role == attn_post_norm || role == mlp_post_norm ||
         role == query_norm || role == key_norm || role == final_norm;
}

bool is_linear(Role role) {
  return role == query || role == key || role == value || role == attn_proj || role == mlp_fc ||
         role == mlp_proj;
}

std::string name_of(const Architecture& family, const Param& param, Naming naming) {
  const auto own = std::ranges::find(family.tensors, param.role, &FamilyTensor::role);
  const bool listed = own != family.tensors.end();
  if (naming == Naming::gguf && !listed) return gguf_name(param);
  const std::string_view name = listed && naming == Naming::gguf ? own->gguf
                                : listed
                                    ? own->transformers
                                    : all_roles()[static_cast<std::size_t>(param.role)].transformers_name;
  check(!name.empty(), "[formats] {} has no tensor for {}", family.name, param.name);
  return fmt::format(fmt::runtime(name), param.layer);
}

}  // namespace

std::vector<FileTensor> file_tensors(const Architecture& family, const ParamTable& params, Naming naming) {
  std::vector<FileTensor> tensors;
  std::map<std::string, std::size_t> places;
  for (const Param& param : params.all()) {
    std::string name = name_of(family, param, naming);
    const auto [place, first] = places.try_emplace(name, tensors.size());
    if (first) {
      FileTensor tensor{.name = std::move(name), .dims = param.dims, .parts = {&param}};
      if (naming == Naming::transformers) {
        tensor.transposed = family.transposed && is_linear(param.role);
        if (is_gain(param.role)) tensor.base = static_cast<float>(family.gain_base);
      }
      tensors.push_back(std::move(tensor));
    } else {
      FileTensor& tensor = tensors[place->second];
      tensor.parts.push_back(&param);
      tensor.dims[0] += param.dims[0];
    }
  }
  for (FileTensor& tensor : tensors)
    if (tensor.transposed) std::ranges::reverse(tensor.dims);
  return tensors;
}

std::vector<float> FileTensor::values(std::span<const float> weights) const {
  std::vector<float> joined;
  for (const Param* part : parts) {
    const auto own = part->in(weights);
    joined.insert(joined.end(), own.begin(), own.end());
  }
  if (base != 0)
    for (float& one : joined) one -= base;
  if (!transposed) return joined;
  const auto rows = static_cast<std::size_t>(dims[1]), cols = static_cast<std::size_t>(dims[0]);
  std::vector<float> out(joined.size());
  for (std::size_t row = 0; row < rows; ++row)
    for (std::size_t col = 0; col < cols; ++col) out[col * rows + row] = joined[row * cols + col];
  return out;
}

bool set_window_layers(ModelConfig& config, const std::vector<bool>& local) {
  const auto layers = static_cast<std::int64_t>(local.size());
  const auto first = std::ranges::find(local, true) - local.begin();
  for (std::int64_t every = 0; every <= layers; ++every) {
    if (every == 1) continue;
    bool equal = true;
    for (std::int64_t i = first; i < layers; ++i)
      equal = equal && local[static_cast<std::size_t>(i)] == (every == 0 || (i + 1) % every != 0);
    if (!equal) continue;
    config.window_from = first, config.global_every = every;
    return true;
  }
  return false;
}

std::int64_t scaled_context(const ModelConfig& c) {
  if (c.position != PositionKind::rope || c.rope_scaling != RopeScaling::longrope) return c.context;
  check(c.context <= c.rope_original_context, Hint{"set context to rope_original_context"},
        "other programs use longrope's long factors only for texts of more than rope_original_context ({}) "
        "tokens, this model with a context of {} uses them for all",
        c.rope_original_context, c.context);
  return std::max(c.context, static_cast<std::int64_t>(
                                 std::llround(static_cast<double>(c.rope_original_context) * c.rope_factor)));
}

// rope_freqs.weight

std::vector<float> rope_divisors(const ModelConfig& config) {
  ModelConfig plain = config;
  plain.rope_scaling = RopeScaling::none;
  const std::vector<double> from = rope_frequencies(plain, false), to = rope_frequencies(config, false);
  std::vector<float> divisors;
  for (std::size_t i = 0; i < from.size(); ++i) divisors.push_back(static_cast<float>(from[i] / to[i]));
  return divisors;
}

bool set_rope_divisors(ModelConfig& config, std::span<const float> divisors) {
  constexpr double kTolerance = 1e-4;  // converters compute in f32
  ModelConfig scaled = config;
  scaled.rope_scaling = RopeScaling::llama3;
  scaled.rope_factor = std::ranges::max(divisors);
  const auto fits = [&] {
    const std::vector<float> own = rope_divisors(scaled);
    return std::ranges::equal(own, divisors,
                              [](double a, double b) { return std::abs(a - b) <= kTolerance * b; });
  };
  const auto found = [&] {
    config = scaled;
    return true;
  };
  if (!(scaled.rope_factor >= 1 && std::ranges::min(divisors) >= 1 - kTolerance)) return false;
  scaled.rope_low_factor = 1, scaled.rope_high_factor = 4, scaled.rope_original_context = 8192;
  if (fits()) return found();
  // The share of a frequency that is kept is linear in it, between 0 and 1. Two points
  // give the line.
  ModelConfig plain = config;
  plain.rope_scaling = RopeScaling::none;
  const std::vector<double> frequencies = rope_frequencies(plain, false);
  std::vector<std::pair<double, double>> points;
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const double least = 1 / scaled.rope_factor,
                 kept = (1 / static_cast<double>(divisors[i]) - least) / (1 - least);
    if (kept > kTolerance && kept < 1 - kTolerance) points.emplace_back(frequencies[i], kept);
  }
  const auto original_of = [](double turns_per_token) {
    return std::clamp(std::round(turns_per_token * 2 * std::numbers::pi), 1.0, 1048576.0);
  };
  if (points.size() >= 2) {
    const auto [x0, y0] = points.front();
    const auto [x1, y1] = points.back();
    const double slope = (y1 - y0) / (x1 - x0), high = 1 - 1 / (y0 - slope * x0);
    if (!(slope > 0 && high > 1 && high < 1e6)) return false;
    scaled.rope_high_factor = std::round(high * 1000) / 1000;
    scaled.rope_original_context =
        static_cast<std::int64_t>(original_of(slope * (scaled.rope_high_factor - 1)));
  } else if (points.size() == 1) {
    scaled.rope_original_context =
        static_cast<std::int64_t>(original_of((points.front().second * 3 + 1) / points.front().first));
  } else {
    return false;
  }
  return fits() && found();
}

}  // namespace thimble
