#include "config/keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <concepts>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/text.h"

namespace thimble {

namespace {

// Each size is bounded so that products of sizes fit 64 bits: a config may come from a hostile
// file.
constexpr double kMaxVocabulary = 1 << 22, kMaxContext = 1 << 20, kMaxLayers = 1 << 10, kMaxDim = 1 << 16;
constexpr double kMaxHeads = 1 << 10, kMaxHeadDim = 1 << 10, kMaxHidden = 1 << 18;
constexpr double kMaxSteps = 1e12, kMaxTokens = 1e12, kMaxBatch = 1 << 30, kMaxSeed = 9007199254740991.0;
constexpr double kMaxRate = 100, kMaxStd = 100, kMaxRank = 1 << 12;

template <class Member>
struct Owner;
template <class Value, class Class>
struct Owner<Value Class::*> {
  using type = Class;
  using value = Value;
};

template <class Part>
struct PlaceOf;  // where Config stores a part
template <>
struct PlaceOf<ModelConfig> {
  static constexpr ConfigPart part = ConfigPart::model;
  static constexpr auto member = &Config::model;
};
template <>
struct PlaceOf<OptimizerConfig> {
  static constexpr ConfigPart part = ConfigPart::optimizer;
  static constexpr auto member = &Config::optimizer;
};
template <>
struct PlaceOf<TrainConfig> {
  static constexpr ConfigPart part = ConfigPart::training;
  static constexpr auto member = &Config::train;
};
template <>
struct PlaceOf<PackConfig> {
  static constexpr ConfigPart part = ConfigPart::pack;
  static constexpr auto member = &Config::pack;
};
template <>
struct PlaceOf<LoraConfig> {
  static constexpr ConfigPart part = ConfigPart::lora;
  static constexpr auto member = &Config::lora;
};
template <>
struct PlaceOf<RunState> {
  static constexpr ConfigPart part = ConfigPart::state;
  static constexpr auto member = &Config::state;
};
template <auto Member>
using Place = PlaceOf<typename Owner<decltype(Member)>::type>;

template <auto Member, class AnyConfig>
auto& field(AnyConfig& config) {
  return config.*Place<Member>::member.*Member;
}

std::string with_dashes(std::string_view name) {
  std::string text(name);
  std::replace(text.begin(), text.end(), '_', '-');
  return text;
}

// One row of the table for a member of type integer, number, flag or list.
template <auto Member>
Key row(std::string_view name, std::string_view help, double least = 0, double most = 0) {
  using Value = typename Owner<decltype(Member)>::value;
  constexpr KeyType type = std::same_as<Value, bool>          ? KeyType::flag
                           : std::same_as<Value, double>      ? KeyType::number
                           : std::same_as<Value, std::string> ? KeyType::list
                                                              : KeyType::integer;
  return {
      .name = name,
      .dashed = with_dashes(name),
      .type = type,
      .part = Place<Member>::part,
      .help = help,
      .least = least,
      .most = most,
      .get = [](const Config& config) { return KeyValue(field<Member>(config)); },
      .put = [](Config& config, const KeyValue& value) { field<Member>(config) = std::get<Value>(value); }};
}

template <class Enum>
struct Names;  // the spelling of each enumerator, in order
template <>
struct Names<MlpKind> {
  static constexpr std::string_view all[] = {"relu", "relu2", "leaky_relu2", "gelu", "swiglu", "geglu"};
};
template <>
struct Names<NormKind> {
  static constexpr std::string_view all[] = {"rms", "rms_weight", "layer"};
};
template <>
struct Names<PositionKind> {
  static constexpr std::string_view all[] = {"rope", "learned", "none"};
};
template <>
struct Names<RopeScaling> {
  static constexpr std::string_view all[] = {"none", "linear", "llama3", "longrope", "yarn"};
};
template <>
struct Names<GainKind> {
  static constexpr std::string_view all[] = {"none", "shared", "head"};
};
template <>
struct Names<MixKind> {
  static constexpr std::string_view all[] = {"none", "scalar", "channel"};
};
template <>
struct Names<InitKind> {
  static constexpr std::string_view all[] = {"golf", "orthogonal", "normal"};
};
template <>
struct Names<ScheduleKind> {
  static constexpr std::string_view all[] = {"linear", "cosine", "wsd", "golf"};
};
template <>
struct Names<ComputeDType> {
  static constexpr std::string_view all[] = {"auto", "f32", "bf16", "f16"};
};
template <>
struct Names<MuonDType> {
  static constexpr std::string_view all[] = {"bf16", "f32"};
};
template <>
struct Names<MuonCoefficients> {
  static constexpr std::string_view all[] = {"jordan", "polar", "none"};
};
template <>
struct Names<LossOn> {
  static constexpr std::string_view all[] = {"assistant", "all"};
};

template <>
struct Names<LoraTarget> {
  static constexpr std::string_view all[] = {"q", "k", "v", "o", "gate", "up", "down"};
};

template <auto Member>
Key choice(std::string_view name, std::string_view help) {
  using Enum = typename Owner<decltype(Member)>::value;
  return {.name = name,
          .dashed = with_dashes(name),
          .type = KeyType::choice,
          .part = Place<Member>::part,
          .help = help,
          .choices = {std::begin(Names<Enum>::all), std::end(Names<Enum>::all)},
          .get =
              [](const Config& config) {
                const auto at = static_cast<std::size_t>(field<Member>(config));
                return KeyValue(std::string(Names<Enum>::all[at]));
              },
          .put =
              [](Config& config, const KeyValue& value) {
                const auto* const found = std::find(std::begin(Names<Enum>::all), std::end(Names<Enum>::all),
                                                    std::get<std::string>(value));
                field<Member>(config) = static_cast<Enum>(found - std::begin(Names<Enum>::all));
              }};
}

// The words of "q,k,v".
std::vector<std::string_view> words_of_set(std::string_view text) {
  std::vector<std::string_view> words;
  while (true) {
    const std::size_t comma = text.find(',');
    words.push_back(text.substr(0, comma));
    if (comma == std::string_view::npos) return words;
    text.remove_prefix(comma + 1);
  }
}

// Member: a struct whose `bits` has bit i for the enumerator with value i.
template <auto Member, class Enum>
Key set(std::string_view name, std::string_view help) {
  static constexpr auto& names = Names<Enum>::all;
  return {.name = name,
          .dashed = with_dashes(name),
          .type = KeyType::set,
          .part = Place<Member>::part,
          .help = help,
          .choices = {std::begin(names), std::end(names)},
          .get =
              [](const Config& config) {
                std::string text;
                for (std::size_t i = 0; i < std::size(names); ++i)
                  if (field<Member>(config).contains(static_cast<Enum>(i)))
                    text += fmt::format("{}{}", text.empty() ? "" : ",", names[i]);
                return KeyValue(text);
              },
          .put =
              [](Config& config, const KeyValue& value) {
                field<Member>(config).bits = 0;
                for (const std::string_view word : words_of_set(std::get<std::string>(value)))
                  field<Member>(config).bits |= 1u << (std::ranges::find(names, word) - std::begin(names));
              }};
}

std::vector<Key> model_keys() {
  using M = ModelConfig;
  return {
      row<&M::vocab_size>("vocab_size", "rows of the embedding; set by the tokenizer", 1, kMaxVocabulary),
      row<&M::context>("context", "longest sequence, in tokens", 1, kMaxContext),
      row<&M::layers>("layers", "number of transformer blocks", 1, kMaxLayers),
      row<&M::dim>("dim", "width of the residual stream", 1, kMaxDim),
      row<&M::heads>("heads", "number of query heads", 1, kMaxHeads),
      row<&M::kv_heads>("kv_heads", "number of key and value heads; 0: same as heads", 0, kMaxHeads),
      row<&M::head_dim>("head_dim", "size of each head; 0: dim / heads", 0, kMaxHeadDim),
      row<&M::mlp_hidden>(
          "mlp_hidden",
          "hidden width of the MLP; 0: 2 x dim for relu2, 8/3 x dim for swiglu and geglu, else 4 x dim", 0,
          kMaxHidden),
      choice<&M::mlp>("mlp", "activation of the MLP"),
      choice<&M::norm>("norm", "rms: RMSNorm without weights; rms_weight: with weights; layer: LayerNorm"),
      row<&M::norm_eps>("norm_eps", "epsilon of the norms", 1e-12, 1),
      row<&M::post_norm>("post_norm", "normalize the outputs of attention and MLP, as gemma does"),
      row<&M::embed_norm>("embed_norm", "normalize the embedding output"),
      row<&M::embed_scale>("embed_scale", "multiply the embedding output by sqrt(dim), as gemma does"),
      row<&M::final_norm>("final_norm", "normalize the input of the output head"),
      row<&M::layer_scale>("layer_scale", "scale the norm outputs of layer l by 1/sqrt(l + 1)"),
      choice<&M::position>("position", "position encoding"),
      row<&M::rope_base>("rope_base", "base of the RoPE wavelengths", 1, 1e12),
      row<&M::rope_dims>("rope_dims", "dimensions of each head that RoPE rotates; 0: all", 0, kMaxHeadDim),
      row<&M::rope_direction>("rope_direction",
                              "sign of the RoPE rotation: 1 as in llama, -1 as in parameter-golf", -1, 1),
      choice<&M::rope_scaling>("rope_scaling",
                               "divide RoPE frequencies: linear: all; llama3: low ones, as Llama 3.1 does; "
                               "yarn: low ones; longrope: by lists, as Phi-3.5 does"),
      row<&M::rope_factor>("rope_factor", "divisor of rope_scaling", 1, 1e6),
      row<&M::rope_low_factor>("rope_low_factor",
                               "llama3: divide wavelengths above rope_original_context / this", 1e-6, 1e6),
      row<&M::rope_high_factor>("rope_high_factor",
                                "llama3: keep wavelengths below rope_original_context / this", 1e-6, 1e6),
      row<&M::rope_original_context>("rope_original_context",
                                     "llama3, longrope, yarn: context before the scaling", 1, kMaxContext),
      row<&M::rope_beta_fast>("rope_beta_fast",
                              "yarn: keep frequencies with more turns than this in the original context",
                              1e-6, 1e6),
      row<&M::rope_beta_slow>("rope_beta_slow",
                              "yarn: divide frequencies with fewer turns than this in the original context",
                              1e-6, 1e6),
      row<&M::rope_attention_factor>("rope_attention_factor",
                                     "longrope, yarn: multiply rotated queries and keys; 0: by the formula",
                                     0, 1e6),
      row<&M::rope_short_factors>("rope_short_factors",
                                  "longrope: divisors of the frequencies up to rope_original_context"),
      row<&M::rope_long_factors>("rope_long_factors",
                                 "longrope: divisors of the frequencies in longer contexts"),
      row<&M::local_rope_base>(
          "local_rope_base", "rope_base of layers with a window, without scaling, as in gemma 3; 0: the same",
          0, 1e12),
      row<&M::nope_every>("nope_every", "every such layer has no RoPE, as in smollm 3; 0: none", 0,
                          kMaxLayers),
      row<&M::window>("window", "tokens that a layer attends to; 0: all", 0, kMaxContext),
      row<&M::window_from>("window_from", "first layer with the window", 0, kMaxLayers),
      row<&M::global_every>("global_every",
                            "every such layer attends to all tokens despite the window; 0: none", 0,
                            kMaxLayers),
      row<&M::attention_softcap>("attention_softcap",
                                 "cap attention scores at this size, as gemma 2 does; 0: off", 0, 1e6),
      row<&M::query_scalar>("query_scalar", "divide attention scores by its square root; 0: head_dim", 0,
                            1e6),
      row<&M::qk_norm>("qk_norm", "normalize each head of q and k"),
      choice<&M::q_gain>("q_gain", "learned gain on q: none, one per layer (shared) or one per head"),
      row<&M::q_gain_init>("q_gain_init", "initial value of q_gain", -1000, 1000),
      row<&M::qkv_bias>("qkv_bias", "add biases to q, k and v"),
      row<&M::bias>("bias", "add biases to every linear layer of a block and to LayerNorm"),
      row<&M::exclusive_attention>(
          "exclusive_attention",
          "subtract from the attention output its component along the token's own value"),
      row<&M::branch_scale>("branch_scale", "learned scale per channel on the outputs of attention and MLP"),
      choice<&M::residual_mix>("residual_mix",
                               "learned mix of the residual stream with the embedding in each block"),
      row<&M::unet_skips>("unet_skips", "add the outputs of the first half of the blocks to the second half"),
      row<&M::skip_gates>("skip_gates", "learned gate per channel on each U-Net skip"),
      row<&M::parallel_from>("parallel_from", "first layer whose attention and MLP run in parallel; -1: none",
                             -1, kMaxLayers),
      row<&M::loop_first>("loop_first", "first layer of the layer loop", 0, kMaxLayers),
      row<&M::loop_last>("loop_last", "last layer of the layer loop", 0, kMaxLayers),
      row<&M::loop_count>("loop_count", "extra passes through the layer loop; 0: no loop", 0, kMaxLayers),
      row<&RunState::loop_on>("loop_on", "set by training: true once the run reaches loop_start"),
      row<&M::bigram_buckets>("bigram_buckets", "rows of the bigram hash table; 0: no table", 0,
                              kMaxVocabulary),
      row<&M::bigram_dim>("bigram_dim", "width of the bigram hash table", 0, kMaxDim),
      row<&M::smear_gate>("smear_gate", "learned blend of each embedding with the previous token's"),
      row<&M::tie_embeddings>("tie_embeddings", "use the embedding as the output head"),
      row<&M::logit_softcap>("logit_softcap", "cap logits at this size: cap x tanh(logit / cap); 0: off", 0,
                             1e6),
      row<&M::dropout>("dropout", "fraction of branch outputs dropped in training", 0, 0.99),
      row<&M::isolate>("isolate", "mask attention between documents in the same row"),
      choice<&M::init>("init",
                       "initial weights: golf (uniform, projections zero), orthogonal, or normal (as GPT-2)"),
      row<&M::init_std>("init_std", "standard deviation of the matrices with init = normal", 0, kMaxStd),
      row<&M::embed_init_std>("embed_init_std", "standard deviation of the embeddings", 0, kMaxStd),
  };
}

std::vector<Key> optimizer_keys() {
  using O = OptimizerConfig;
  return {
      row<&O::lr>(
          "lr", "learning rate of all groups without a rate of their own; if given, a preset's are replaced",
          0, kMaxRate),
      row<&O::embed_lr>("embed_lr", "learning rate of embeddings; 0: lr; -1: frozen", kFrozen, kMaxRate),
      row<&O::head_lr>("head_lr", "learning rate of an untied output head; 0: lr; -1: frozen", kFrozen,
                       kMaxRate),
      row<&O::matrix_lr>("matrix_lr", "learning rate of the matrices in blocks; 0: lr; -1: frozen", kFrozen,
                         kMaxRate),
      row<&O::scalar_lr>("scalar_lr", "learning rate of vectors and scalars; 0: lr; -1: frozen", kFrozen,
                         kMaxRate),
      row<&O::beta1>("beta1", "decay of Adam's first moment", 0, 0.9999999),
      row<&O::beta2>("beta2", "decay of Adam's second moment", 0, 0.9999999),
      row<&O::adam_eps>("adam_eps", "epsilon of Adam", 0, 1),
      row<&O::weight_decay>("weight_decay", "weight decay of parameters trained by Adam", 0, 100),
      row<&O::muon_weight_decay>("muon_weight_decay", "weight decay of matrices trained by Muon", 0, 100),
      row<&O::muon_momentum>("muon_momentum", "momentum of Muon after its warm-up", 0, 0.9999999),
      row<&O::muon_momentum_start>("muon_momentum_start", "momentum of Muon at step 0", 0, 0.9999999),
      row<&O::muon_momentum_steps>("muon_momentum_steps", "steps of momentum warm-up", 0, kMaxSteps),
      row<&O::muon_steps>("muon_steps", "Newton-Schulz iterations of Muon; 0: train matrices with Adam", 0,
                          20),
      choice<&O::muon_dtype>("muon_dtype", "number format of the Newton-Schulz iterations"),
      choice<&O::muon_coefficients>(
          "muon_coefficients",
          "Newton-Schulz coefficients: jordan, polar (Polar Express), or none (no iterations)"),
      row<&O::muon_row_norm>("muon_row_norm",
                             "normalize rows of the momentum before Newton-Schulz (MuonEq-R)"),
      row<&O::clip>("clip", "largest gradient norm; 0: no clipping", 0, 1e9),
  };
}

std::vector<Key> schedule_keys() {
  using T = TrainConfig;
  return {
      row<&T::steps>("steps", "optimizer steps; 0: until max_seconds", 0, kMaxSteps),
      row<&T::epochs>("epochs", "passes over the training data, instead of steps; 0: use steps", 0, 1e6),
      row<&T::max_seconds>("max_seconds", "longest training time, in seconds; 0: no limit", 0, 1e9),
      choice<&T::schedule>("schedule",
                           "learning-rate schedule; golf: constant, then linear to 0 over warmdown"),
      row<&T::warmup_steps>("warmup_steps", "steps over which the learning rate rises", 0, kMaxSteps),
      row<&T::prime_steps>("prime_steps", "forward and backward passes without an update before step 1", 0,
                           1e6),
      row<&T::warmdown>("warmdown",
                        "final steps over which the learning rate falls; below 1: fraction of the run", 0,
                        kMaxSteps),
      row<&T::min_lr>("min_lr", "lowest learning rate, as a fraction of the peak", 0, 1),
      row<&T::loop_start>("loop_start", "step at which the layer loop starts; below 1: fraction of the run",
                          0, kMaxSteps),
      row<&T::batch_tokens>("batch_tokens", "tokens per step; 0: from batch_size, or 16 rows", 0, kMaxBatch),
      row<&T::batch_size>("batch_size", "rows of `context` tokens per step, instead of batch_tokens", 0,
                          kMaxBatch),
      row<&T::span_tokens>("span_tokens", "consecutive tokens read at a time; 0: derived from the batch", 0,
                           kMaxBatch),
      row<&T::micro_batch>("micro_batch", "rows computed at a time; 0: as many as fit into memory", 0,
                           kMaxBatch),
      row<&T::checkpoint_activations>("checkpoint_activations",
                                      "recompute blocks in the backward pass: less memory, more time"),
      choice<&T::dtype>("dtype", "number format of the computation; f16 needs CUDA"),
      choice<&T::loss_on>("loss_on", "tokens of a chat that are trained on: the assistant's or all"),
      row<&T::seed>("seed", "seed of all random numbers", 0, kMaxSeed),
  };
}

std::vector<Key> validation_keys() {
  using T = TrainConfig;
  return {
      row<&T::val_every>("val_every", "steps between validations; 0: only at the end", 0, kMaxSteps),
      row<&T::val_tokens>("val_tokens", "validation tokens to use; 0: all", 0, kMaxTokens),
      row<&T::patience>("patience", "stop after this many validations without improvement; 0: off", 0, 1e9),
      row<&T::min_delta>("min_delta", "smallest improvement that counts for patience, in nats", 0, 1e6),
      row<&T::min_steps>("min_steps", "steps before patience may stop the run", 0, kMaxSteps),
      row<&T::target_val_loss>("target_val_loss",
                               "stop when the validation loss is this low, in nats; 0: off", 0, 1e6),
      row<&T::stop_on_divergence>("stop_on_divergence",
                                  "stop when the training loss rises far above its lowest value"),
      row<&T::checkpoint_every>("checkpoint_every", "steps between checkpoints; 0: at every validation", 0,
                                kMaxSteps),
      row<&T::keep>("keep", "number of checkpoints to keep", 1, 1e6),
  };
}

std::vector<Key> averaging_keys() {
  using T = TrainConfig;
  return {
      row<&T::swa_start>("swa_start",
                         "average weights while the learning rate is below this fraction of its peak; 0: off",
                         0, 1),
      row<&T::swa_every>("swa_every", "steps between averaged states", 1, kMaxSteps),
      row<&T::ema_decay>("ema_decay", "decay of an exponential moving average of the weights; 0: off", 0,
                         0.9999999),
  };
}

std::vector<Key> packing_keys() {
  using T = TrainConfig;
  using P = PackConfig;
  return {
      row<&T::qat_bits>("qat_bits", "quantization-aware training at 8, 6 or 5 bits; 0: off", 0, 8),
      row<&T::qat_start>("qat_start", "step at which fake quantization starts; below 1: fraction of the run",
                         0, kMaxSteps),
      row<&P::bits>("pack_bits", "pack: bits per weight, 8, 6 or 5; 0: the default of pack", 0, 8),
      row<&P::prune>("pack_prune", "pack: fraction of each matrix set to zero", 0, 0.99),
      row<&P::gptq>("pack_gptq", "pack: quantize with GPTQ"),
      row<&P::range>("pack_range", "pack: compress with the range coder instead of zstd"),
      row<&P::clip_std>("pack_clip_std",
                        "pack: clip each row at this many standard deviations; 0: clip at a percentile", 0,
                        1000),
      row<&P::embed_bits>("pack_embed_bits",
                          "pack: bits of the embedding and head, 8, 6 or 5; 0: pack's default", 0, 8),
      row<&P::embed_clip_std>("pack_embed_clip_std", "pack: pack_clip_std of the embedding and head", 0,
                              1000),
      row<&P::stride>("pack_stride", "pack: stride of the evaluation windows, in tokens; 0: context", 0,
                      kMaxContext),
  };
}

std::vector<Key> adapter_keys() {
  using L = LoraConfig;
  return {
      row<&L::rank>("lora_rank",
                    "train low-rank adapters of this rank, and no other weights; 0: train all weights", 0,
                    kMaxRank),
      row<&L::alpha>("lora_alpha", "scale of the adapters times their rank; 0: twice the rank", 0, 1e6),
      row<&L::dropout>("lora_dropout", "fraction of the adapters' inputs dropped in training", 0, 0.99),
      row<&L::stabilized>("lora_stabilized", "divide lora_alpha by the root of the rank, as rsLoRA does"),
      set<&L::targets, LoraTarget>("lora_targets", "linear layers with an adapter"),
  };
}

std::vector<Key> build_keys() {
  const std::pair<std::string_view, std::vector<Key>> groups[] = {
      {"model", model_keys()},           {"optimizer", optimizer_keys()}, {"schedule", schedule_keys()},
      {"validation", validation_keys()}, {"averaging", averaging_keys()}, {"packing", packing_keys()},
      {"adapters", adapter_keys()},
  };
  std::vector<Key> keys;
  for (const auto& [group, rows] : groups)
    for (const Key& row : rows) keys.emplace_back(row).group = group;
  return keys;
}

}  // namespace

std::span<const Key> all_keys() {
  static const std::vector<Key> keys = build_keys();  // immutable
  return keys;
}

const Key* find_key(std::string_view name) {
  const auto keys = all_keys();
  const auto found = std::find_if(keys.begin(), keys.end(), [&](const Key& key) { return key.name == name; });
  return found == keys.end() ? nullptr : &*found;
}

std::string nearest_key_hint(std::string_view name) {
  std::string word(name);
  std::replace(word.begin(), word.end(), '-', '_');
  std::vector<std::string_view> names;
  for (const Key& key : all_keys()) names.push_back(key.name);
  std::string_view best = synonym(word, names);
  if (best.empty()) best = nearest(word, names);
  return best.empty() ? "" : fmt::format("did you mean {}?", best);
}

namespace {

// "a whole number from 1 to 1024", "rms, rms_weight or layer"
std::string expected(const Key& key) {
  switch (key.type) {
    case KeyType::integer:
      return fmt::format("a whole number from {} to {}", std::int64_t(key.least), std::int64_t(key.most));
    case KeyType::number:
      return fmt::format("a number from {} to {}", key.least, key.most);
    case KeyType::flag:
      return "true or false";
    case KeyType::list:
      return "numbers, separated by commas";
    case KeyType::choice:
    case KeyType::set:
      break;
  }
  std::string text = key.type == KeyType::set ? "one or more of " : "";
  for (std::size_t i = 0; i < key.choices.size(); ++i)
    text += fmt::format("{}{}", i == 0 ? "" : i + 1 == key.choices.size() ? " or " : ", ", key.choices[i]);
  return text;
}

bool is_numeric(const Key& key) {
  return key.type == KeyType::integer || key.type == KeyType::number;
}

[[noreturn]] void refuse(const Key& key, std::string_view found, std::string_view where) {
  std::string hint;
  if (const std::string_view best = nearest(found, key.choices); !best.empty())
    hint = fmt::format("did you mean {}?", best);
  else if (is_numeric(key) && has_unknown_unit(found))
    hint = kUnitsHint;
  fail(Hint{hint}, "{}{} expects {}, found '{}'", where, key.name, expected(key), found.substr(0, 80));
}

// A text in quotes for a key whose value is written without them: steps = "5".
[[noreturn]] void refuse_quotes(const Key& key, std::string_view found, std::string_view where) {
  fail(Hint{fmt::format("write the value of {} without quotes", key.name)},
       "{}{} expects {}, found the text \"{}\"", where, key.name, expected(key), found.substr(0, 80));
}

// nullopt if the value has another type. An integer is accepted as a number.
std::optional<KeyValue> in_type_of(const Key& key, const KeyValue& value) {
  const auto is_name = [&](std::string_view word) {
    return std::ranges::find(key.choices, word) != key.choices.end();
  };
  switch (key.type) {
    case KeyType::integer:
      if (std::holds_alternative<std::int64_t>(value)) return value;
      return std::nullopt;
    case KeyType::number:
      if (const auto* whole = std::get_if<std::int64_t>(&value)) return KeyValue(static_cast<double>(*whole));
      if (std::holds_alternative<double>(value)) return value;
      return std::nullopt;
    case KeyType::flag:
      if (std::holds_alternative<bool>(value)) return value;
      return std::nullopt;
    case KeyType::choice:
      if (const auto* text = std::get_if<std::string>(&value))
        if (is_name(*text)) return value;
      return std::nullopt;
    case KeyType::set:
      if (const auto* text = std::get_if<std::string>(&value))
        if (std::ranges::all_of(words_of_set(*text), is_name)) return value;
      return std::nullopt;
    case KeyType::list:
      if (const auto* text = std::get_if<std::string>(&value); text && numbers_in(*text)) return value;
      return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace

KeyValue checked_value(const Key& key, const KeyValue& value, std::string_view where) {
  const std::optional<KeyValue> typed = in_type_of(key, value);
  const auto* text = std::get_if<std::string>(&value);
  if (!typed && text && !is_quoted(key)) refuse_quotes(key, *text, where);
  if (!typed) refuse(key, value_text(value), where);
  const auto* whole = std::get_if<std::int64_t>(&*typed);
  const auto* real = std::get_if<double>(&*typed);
  if (!whole && !real) return *typed;
  const double number = whole ? static_cast<double>(*whole) : *real;
  check(!(number < 0 && key.least == 0), "{}{} must not be negative, found {}", where, key.name,
        value_text(value));
  // The comparison is false for NaN.
  if (!(number >= key.least && number <= key.most)) refuse(key, value_text(value), where);
  return *typed;
}

void check_values(const Config& config, ConfigPart part) {
  for (const Key& key : all_keys())
    if (key.part == part) checked_value(key, key.get(config), "");
}

KeyValue value_from_text(const Key& key, std::string_view text, std::string_view where) {
  std::string digits(text);  // TOML allows underscores in numbers
  std::erase(digits, '_');
  if (is_numeric(key)) {
    if (const auto whole = parse_integer_with_unit(digits)) return checked_value(key, *whole, where);
    if (const auto real = parse_number_with_unit(digits); key.type == KeyType::number && real)
      return checked_value(key, *real, where);
    refuse(key, text, where);
  }
  if (is_quoted(key)) return checked_value(key, std::string(text), where);
  if (text != "true" && text != "false") refuse(key, text, where);
  return text == "true";
}

std::optional<std::vector<double>> numbers_in(std::string_view list) {
  std::vector<double> numbers;
  while (!list.empty()) {
    const std::size_t end = std::min(list.find(','), list.size());
    const auto number = parse_number<double>(trim(list.substr(0, end)));
    if (!number || !std::isfinite(*number)) return std::nullopt;
    numbers.push_back(*number);
    list.remove_prefix(std::min(end + 1, list.size()));
  }
  return numbers;
}

std::string value_text(const KeyValue& value) {
  if (const auto* whole = std::get_if<std::int64_t>(&value)) return fmt::format("{}", *whole);
  if (const auto* flag = std::get_if<bool>(&value)) return *flag ? "true" : "false";
  if (const auto* text = std::get_if<std::string>(&value)) return *text;
  // fmt prints the shortest digits that round-trip. Add ".0", else "30" would be read as an
  // integer.
  std::string text = fmt::format("{}", std::get<double>(value));
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}

}  // namespace thimble
