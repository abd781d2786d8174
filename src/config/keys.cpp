#include "config/keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <concepts>
#include <optional>

#include "base/error.h"
#include "base/text.h"

namespace thimble {

namespace {

// Sizes are bounded one by one so that their products fit 64 bits: a config may come out of a hostile file.
constexpr double kMaxVocabulary = 1 << 22, kMaxContext = 1 << 20, kMaxLayers = 1 << 10, kMaxDim = 1 << 16;
constexpr double kMaxHeads = 1 << 10, kMaxHeadDim = 1 << 10, kMaxHidden = 1 << 18;
constexpr double kMaxSteps = 1e12, kMaxTokens = 1e12, kMaxBatch = 1 << 30, kMaxSeed = 9007199254740991.0;
constexpr double kMaxRate = 100, kMaxStd = 100;

template <class Member>
struct Owner;
template <class Value, class Class>
struct Owner<Value Class::*> {
  using type = Class;
  using value = Value;
};

template <class Part>
struct PlaceOf;  // of a struct in Config
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

// One row of the table from a member: integers, numbers and flags are stored as they are.
template <auto Member>
Key row(std::string_view name, std::string_view help, double least = 0, double most = 0) {
  using Value = typename Owner<decltype(Member)>::value;
  constexpr KeyType type = std::same_as<Value, bool>     ? KeyType::flag
                           : std::same_as<Value, double> ? KeyType::number
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
  static constexpr std::string_view all[] = {"relu", "relu2", "leaky_relu2", "gelu", "swiglu"};
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
  static constexpr std::string_view all[] = {"jordan", "polar"};
};
template <>
struct Names<LossOn> {
  static constexpr std::string_view all[] = {"assistant", "all"};
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

std::vector<Key> model_keys() {
  using M = ModelConfig;
  return {
      row<&M::vocab_size>("vocab_size", "rows of the embedding: the tokenizer's size", 1, kMaxVocabulary),
      row<&M::context>("context", "longest sequence, in tokens", 1, kMaxContext),
      row<&M::layers>("layers", "blocks", 1, kMaxLayers),
      row<&M::dim>("dim", "width of the residual stream", 1, kMaxDim),
      row<&M::heads>("heads", "query heads", 1, kMaxHeads),
      row<&M::kv_heads>("kv_heads", "key and value heads (0: as many as heads)", 0, kMaxHeads),
      row<&M::head_dim>("head_dim", "size of a head (0: dim / heads)", 0, kMaxHeadDim),
      row<&M::mlp_hidden>("mlp_hidden", "width inside the MLP (0: by the activation)", 0, kMaxHidden),
      choice<&M::mlp>("mlp", "activation of the MLP"),
      choice<&M::norm>("norm", "rms: no weight; rms_weight: llama's; layer: LayerNorm"),
      row<&M::norm_eps>("norm_eps", "added to the mean square before its root", 1e-12, 1),
      row<&M::embed_norm>("embed_norm", "a norm right after the embedding"),
      row<&M::final_norm>("final_norm", "a norm before the head"),
      row<&M::layer_scale>("layer_scale", "norm outputs of layer l times 1/sqrt(l + 1)"),
      choice<&M::position>("position", "how a token knows its place"),
      row<&M::rope_base>("rope_base", "base of the RoPE wavelengths", 1, 1e12),
      row<&M::rope_dims>("rope_dims", "columns of a head that RoPE turns (0: all)", 0, kMaxHeadDim),
      row<&M::rope_direction>("rope_direction", "1 turns as llama does, -1 as the golf files", -1, 1),
      row<&M::qk_norm>("qk_norm", "a norm over each head of q and k"),
      choice<&M::q_gain>("q_gain", "learned factor on q, one a layer or one a head"),
      row<&M::q_gain_init>("q_gain_init", "where q_gain starts", -1000, 1000),
      row<&M::qkv_bias>("qkv_bias", "biases on q, k and v"),
      row<&M::bias>("bias", "biases on every linear of a block, and on LayerNorm"),
      row<&M::exclusive_attention>("exclusive_attention", "takes a token's own value out of its result"),
      row<&M::branch_scale>("branch_scale", "learned factor per channel on what attention and MLP add"),
      choice<&M::residual_mix>("residual_mix", "learned mix of the stream with the embedding, per block"),
      row<&M::unet_skips>("unet_skips", "the second half's blocks add the first half's outputs"),
      row<&M::skip_gates>("skip_gates", "a learned gate per channel between a skip and the stream"),
      row<&M::parallel_from>("parallel_from", "from this layer on attention and MLP read alike (-1: none)",
                             -1, kMaxLayers),
      row<&M::loop_first>("loop_first", "first layer of a loop", 0, kMaxLayers),
      row<&M::loop_last>("loop_last", "its last layer", 0, kMaxLayers),
      row<&M::loop_count>("loop_count", "how many more times it is gone through (0: no loop)", 0, kMaxLayers),
      row<&RunState::loop_on>("loop_on", "false: this model has not come to its loop yet (training sets it)"),
      row<&M::bigram_buckets>("bigram_buckets", "rows of the bigram hash table (0: none)", 0, kMaxVocabulary),
      row<&M::bigram_dim>("bigram_dim", "width of the bigram hash table", 0, kMaxDim),
      row<&M::smear_gate>("smear_gate", "learned blend with the previous token's embedding"),
      row<&M::tie_embeddings>("tie_embeddings", "the head is the embedding"),
      row<&M::logit_softcap>("logit_softcap", "logits become cap tanh(logit / cap) (0: off)", 0, 1e6),
      row<&M::dropout>("dropout", "fraction of branch outputs dropped in training", 0, 0.99),
      row<&M::isolate>("isolate", "documents that share a row do not see each other"),
      choice<&M::init>("init", "golf: uniform, projections zero; orthogonal: golf-plus; normal: GPT-2"),
      row<&M::init_std>("init_std", "of matrices, where init = normal", 0, kMaxStd),
      row<&M::embed_init_std>("embed_init_std", "of embeddings", 0, kMaxStd),
  };
}

std::vector<Key> optimizer_keys() {
  using O = OptimizerConfig;
  return {
      row<&O::lr>("lr", "learning rate of every group without its own", 0, kMaxRate),
      row<&O::embed_lr>("embed_lr", "learning rate of embeddings (0: lr)", 0, kMaxRate),
      row<&O::head_lr>("head_lr", "learning rate of an untied head (0: lr)", 0, kMaxRate),
      row<&O::matrix_lr>("matrix_lr", "learning rate of the blocks' matrices (0: lr)", 0, kMaxRate),
      row<&O::scalar_lr>("scalar_lr", "learning rate of vectors and scalars (0: lr)", 0, kMaxRate),
      row<&O::beta1>("beta1", "Adam's decay of the mean", 0, 0.9999999),
      row<&O::beta2>("beta2", "Adam's decay of the square", 0, 0.9999999),
      row<&O::adam_eps>("adam_eps", "Adam's epsilon", 0, 1),
      row<&O::weight_decay>("weight_decay", "of what Adam trains", 0, 100),
      row<&O::muon_weight_decay>("muon_weight_decay", "of what Muon trains", 0, 100),
      row<&O::muon_momentum>("muon_momentum", "Muon's momentum", 0, 0.9999999),
      row<&O::muon_momentum_start>("muon_momentum_start", "where the momentum starts", 0, 0.9999999),
      row<&O::muon_momentum_steps>("muon_momentum_steps", "steps it takes to grow", 0, kMaxSteps),
      row<&O::muon_steps>("muon_steps", "Newton-Schulz iterations (0: Adam trains the matrices too)", 0, 20),
      choice<&O::muon_dtype>("muon_dtype", "what Newton-Schulz computes in"),
      choice<&O::muon_coefficients>("muon_coefficients", "of Newton-Schulz; polar: Polar Express"),
      row<&O::muon_row_norm>("muon_row_norm", "rows of the momentum to length 1 first (MuonEq-R)"),
      row<&O::clip>("clip", "largest norm of the gradient (0: off)", 0, 1e9),
  };
}

std::vector<Key> run_keys() {
  using T = TrainConfig;
  return {
      choice<&T::schedule>("schedule", "how the learning rate goes; golf: flat, then down to 0 at the end"),
      row<&T::warmup_steps>("warmup_steps", "steps in which the learning rate grows", 0, kMaxSteps),
      row<&T::prime_steps>("prime_steps", "forward and backward without update, before step 1", 0, 1e6),
      row<&T::warmdown>("warmdown", "the last steps (below 1: fraction) in which it falls", 0, kMaxSteps),
      row<&T::min_lr>("min_lr", "what it does not fall below, as a fraction", 0, 1),
      row<&T::steps>("steps", "optimizer steps (0: until max_seconds)", 0, kMaxSteps),
      row<&T::max_seconds>("max_seconds", "training time (0: no limit)", 0, 1e9),
      row<&T::batch_tokens>("batch_tokens", "tokens in a step", 0, kMaxBatch),
      row<&T::batch_size>("batch_size", "rows of `context` tokens in a step, instead of batch_tokens", 0,
                          kMaxBatch),
      row<&T::span_tokens>("span_tokens", "tokens read in one piece (0: by the batch)", 0, kMaxBatch),
      row<&T::micro_batch>("micro_batch", "rows computed at a time (0: what fits)", 0, kMaxBatch),
      row<&T::checkpoint_activations>("checkpoint_activations",
                                      "compute blocks again in backward: less memory, more time"),
      choice<&T::dtype>("dtype", "what the model computes in (f16: on CUDA alone, with a scaled loss)"),
      row<&T::seed>("seed", "of every random number", 0, kMaxSeed),
      row<&T::swa_start>("swa_start", "average weights while the rate is below this fraction (0: off)", 0, 1),
      row<&T::swa_every>("swa_every", "steps from one averaged state to the next", 1, kMaxSteps),
      row<&T::ema_decay>("ema_decay", "moving average of the weights (0: off)", 0, 0.9999999),
      row<&T::qat_bits>("qat_bits", "train as if quantised: 8, 6 or 5 bits (0: off)", 0, 8),
      row<&T::qat_start>("qat_start", "step (below 1: fraction) from which on", 0, kMaxSteps),
      row<&T::loop_start>("loop_start", "step (below 1: fraction) from which the loop is on", 0, kMaxSteps),
      row<&T::patience>("patience", "validations without a better one before stopping (0: off)", 0, 1e9),
      row<&T::min_delta>("min_delta", "nats that count as better", 0, 1e6),
      row<&T::min_steps>("min_steps", "steps before patience may stop the run", 0, kMaxSteps),
      row<&T::val_every>("val_every", "steps from one validation to the next (0: only at the end)", 0,
                         kMaxSteps),
      row<&T::val_tokens>("val_tokens", "validation tokens to use (0: all)", 0, kMaxTokens),
      row<&T::checkpoint_every>("checkpoint_every",
                                "steps from one checkpoint to the next (0: at validations)", 0, kMaxSteps),
      row<&T::keep>("keep", "checkpoints kept", 1, 1e6),
      choice<&T::loss_on>("loss_on", "chats: which tokens are trained on"),
  };
}

std::vector<Key> pack_keys() {
  using P = PackConfig;
  return {
      row<&P::bits>("pack_bits", "for `thimble pack`: bits of a weight, 8, 6 or 5 (0: 8)", 0, 8),
      row<&P::prune>("pack_prune", "for `thimble pack`: fraction of each matrix to zero", 0, 0.99),
      row<&P::gptq>("pack_gptq", "for `thimble pack`: columns make up for each other's rounding"),
      row<&P::range>("pack_range", "for `thimble pack`: our range coder, not zstd"),
      row<&P::clip_std>("pack_clip_std",
                        "for `thimble pack`: clip rows at so many deviations (0: pack's own place)", 0, 1000),
      row<&P::embed_bits>("pack_embed_bits",
                          "for `thimble pack`: bits of embedding and head, 8, 6 or 5 (0: pack's own)", 0, 8),
      row<&P::embed_clip_std>("pack_embed_clip_std",
                              "for `thimble pack`: the same as pack_clip_std, of embedding and head", 0,
                              1000),
      row<&P::stride>("pack_stride", "for `thimble pack --data`: stride of its windows (0: context)", 0,
                      kMaxContext),
  };
}

std::vector<Key> build_keys() {
  std::vector<Key> keys;
  for (auto part : {model_keys(), optimizer_keys(), run_keys(), pack_keys()})
    keys.insert(keys.end(), part.begin(), part.end());
  return keys;
}

}  // namespace

std::span<const Key> all_keys() {
  static const std::vector<Key> keys = build_keys();  // made once, never changed
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
  const std::string_view best = nearest(word, names);
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
    case KeyType::choice:
      break;
  }
  std::string text;
  for (std::size_t i = 0; i < key.choices.size(); ++i)
    text += fmt::format("{}{}", i == 0 ? "" : i + 1 == key.choices.size() ? " or " : ", ", key.choices[i]);
  return text;
}

[[noreturn]] void refuse(const Key& key, std::string_view found, std::string_view where) {
  const std::string_view best = nearest(found, key.choices);
  fail(best.empty() ? Hint{} : Hint{fmt::format("did you mean {}?", best)}, "{}{} takes {}, found '{}'",
       where, key.name, expected(key), found.substr(0, 80));
}

// nullopt: the value is of another kind. Whole numbers are numbers too.
std::optional<KeyValue> in_type_of(const Key& key, const KeyValue& value) {
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
        if (std::find(key.choices.begin(), key.choices.end(), *text) != key.choices.end()) return value;
      return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace

KeyValue checked_value(const Key& key, const KeyValue& value, std::string_view where) {
  const std::optional<KeyValue> typed = in_type_of(key, value);
  if (!typed) refuse(key, value_text(value), where);
  const auto* whole = std::get_if<std::int64_t>(&*typed);
  const auto* real = std::get_if<double>(&*typed);
  if (!whole && !real) return *typed;
  const double number = whole ? static_cast<double>(*whole) : *real;
  check(!(number < 0 && key.least == 0), "{}{} must not be negative, found {}", where, key.name,
        value_text(value));
  // Written so that NaN is refused.
  if (!(number >= key.least && number <= key.most)) refuse(key, value_text(value), where);
  return *typed;
}

void check_values(const Config& config, ConfigPart part) {
  for (const Key& key : all_keys())
    if (key.part == part) checked_value(key, key.get(config), "");
}

KeyValue value_from_text(const Key& key, std::string_view text, std::string_view where) {
  KeyValue value = std::string(text);
  std::string digits(text);  // 524_288 is how TOML may write 524288
  std::erase(digits, '_');
  const bool wants_number = key.type == KeyType::integer || key.type == KeyType::number;
  if (const auto whole = number_in<std::int64_t>(digits); wants_number && whole)
    value = *whole;
  else if (const auto real = number_in<double>(digits); key.type == KeyType::number && real)
    value = *real;
  else if (key.type == KeyType::flag && (text == "true" || text == "false"))
    value = text == "true";
  return checked_value(key, value, where);
}

std::string value_text(const KeyValue& value) {
  if (const auto* whole = std::get_if<std::int64_t>(&value)) return fmt::format("{}", *whole);
  if (const auto* flag = std::get_if<bool>(&value)) return *flag ? "true" : "false";
  if (const auto* text = std::get_if<std::string>(&value)) return *text;
  // fmt prints the shortest digits that read back as the same double; "30" alone would be a whole number.
  std::string text = fmt::format("{}", std::get<double>(value));
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}

}  // namespace thimble
