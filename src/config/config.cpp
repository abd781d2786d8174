#include "config/config.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "config/keys.h"

namespace thimble {

namespace {

constexpr std::int64_t kDefaultRows = 16;
constexpr std::int64_t kSwigluMultiple = 64;  // mlp_hidden is a multiple of it, for full GEMM tiles
constexpr std::int64_t kGolfSpans = 8;        // parameter-golf reads a step in 8 spans

std::int64_t default_mlp_hidden(const ModelConfig& config) {
  switch (config.mlp) {
    case MlpKind::relu2:
    case MlpKind::leaky_relu2:
      return 2 * config.dim;
    case MlpKind::relu:
    case MlpKind::gelu:
      return 4 * config.dim;
    case MlpKind::swiglu:
    case MlpKind::geglu:
      break;
  }
  // A gated MLP has three matrices; a width of 8/3 dim gives it the parameters of a two-matrix MLP
  // of 4 dim.
  const std::int64_t tiles = (8 * config.dim + 3 * kSwigluMultiple - 1) / (3 * kSwigluMultiple);
  return tiles * kSwigluMultiple;
}

std::int64_t default_span(std::int64_t batch_tokens, std::int64_t context) {
  const bool whole_rows = batch_tokens % (kGolfSpans * context) == 0;
  return whole_rows ? batch_tokens / kGolfSpans : batch_tokens;
}

void check_run_values(const Config& config) {
  check_values(config, ConfigPart::optimizer);
  check_values(config, ConfigPart::training);
  check_values(config, ConfigPart::pack);
  check_values(config, ConfigPart::lora);
}

}  // namespace

std::int64_t micro_batch_rows(const Config& config) {
  constexpr std::int64_t kTokens = 8192;
  const std::int64_t rows = std::max<std::int64_t>(1, config.train.batch_tokens / config.model.context);
  const std::int64_t preferred =
      config.train.micro_batch > 0 ? config.train.micro_batch : kTokens / config.model.context;
  return std::clamp<std::int64_t>(preferred, 1, rows);
}

double LoraConfig::scale() const {
  const double size = alpha > 0 ? alpha : 2 * static_cast<double>(rank);
  return size / (stabilized ? std::sqrt(static_cast<double>(rank)) : static_cast<double>(rank));
}

double OptimizerConfig::rate(ParamGroup group) const {
  const double own = group == ParamGroup::embedding ? embed_lr
                     : group == ParamGroup::head    ? head_lr
                     : group == ParamGroup::matrix  ? matrix_lr
                                                    : scalar_lr;
  return own == kFrozen ? 0 : own > 0 ? own : lr;
}

ModelConfig resolved(ModelConfig config) {
  check_values({.model = config}, ConfigPart::model);
  if (config.head_dim == 0) {
    check(config.dim % config.heads == 0, Hint{"change one of them, or set head_dim"},
          "dim ({}) must be divisible by heads ({})", config.dim, config.heads);
    config.head_dim = config.dim / config.heads;
  }
  if (config.kv_heads == 0) config.kv_heads = config.heads;
  if (config.mlp_hidden == 0) config.mlp_hidden = default_mlp_hidden(config);
  if (config.position != PositionKind::rope)
    config.rope_dims = 0;
  else if (config.rope_dims == 0)
    config.rope_dims = config.head_dim;
  validate(config);
  return config;
}

Config resolved(Config config) {
  check_run_values(config);
  config.model = resolved(config.model);
  TrainConfig& train = config.train;
  if (train.batch_size > 0) {
    check(train.batch_tokens == 0, "batch_tokens ({}) and batch_size ({}) cannot both be set",
          train.batch_tokens, train.batch_size);
    train.batch_tokens = train.batch_size * config.model.context;
    train.batch_size = 0;
  }
  if (train.batch_tokens == 0) train.batch_tokens = kDefaultRows * config.model.context;
  if (train.span_tokens == 0) train.span_tokens = default_span(train.batch_tokens, config.model.context);
  validate(config);
  return config;
}

namespace {

constexpr std::int64_t kMaxRopeTable = std::int64_t{1} << 27;  // elements, 512 MiB
constexpr std::int64_t kMaxPasses = 1 << 10;                   // the same limit as for layers

void check_attention(const ModelConfig& c) {
  check(c.head_dim > 0 && c.kv_heads > 0 && c.mlp_hidden > 0,
        "head_dim, kv_heads and mlp_hidden must be positive, found {}, {} and {}", c.head_dim, c.kv_heads,
        c.mlp_hidden);
  check(c.heads % c.kv_heads == 0, "heads ({}) must be divisible by kv_heads ({})", c.heads, c.kv_heads);
  check(c.rope_direction != 0, "rope_direction must be 1 or -1, found 0");
  check(c.head_dim > 1 || (!c.qk_norm && c.q_gain == GainKind::none),
        "qk_norm and q_gain need heads of at least 2 columns, found 1");
  check(c.window > 0 || (c.window_from == 0 && c.global_every == 0 && c.local_rope_base == 0),
        Hint{"set window, or remove them"},
        "window_from ({}), global_every ({}) and local_rope_base ({}) need a window", c.window_from,
        c.global_every, c.local_rope_base);
  if (c.position != PositionKind::rope) return;
  check(c.nope_every == 0 || (!c.qk_norm && c.q_gain == GainKind::none),
        "nope_every needs qk_norm = false and q_gain = none");
  check(c.local_rope_base == 0 || c.local_rope_base >= 1, "local_rope_base must be at least 1, found {}",
        c.local_rope_base);
  check(c.rope_scaling != RopeScaling::llama3 || c.rope_low_factor < c.rope_high_factor,
        "rope_low_factor ({}) must be below rope_high_factor ({})", c.rope_low_factor, c.rope_high_factor);
  check(c.rope_scaling != RopeScaling::yarn || c.rope_beta_slow < c.rope_beta_fast,
        "rope_beta_slow ({}) must be below rope_beta_fast ({})", c.rope_beta_slow, c.rope_beta_fast);
  if (c.rope_scaling == RopeScaling::longrope)
    for (const auto& [name, list] : {std::pair{"rope_short_factors", &c.rope_short_factors},
                                     std::pair{"rope_long_factors", &c.rope_long_factors}}) {
      const auto factors = numbers_in(*list);
      check(factors && std::ssize(*factors) == c.rope_dims / 2 &&
                std::ranges::all_of(*factors, [](double factor) { return factor >= 1e-6 && factor <= 1e6; }),
            "{} must be {} positive numbers, one for each two of rope_dims, found '{}'", name,
            c.rope_dims / 2, list->substr(0, 80));
    }
  if (c.rope_dims == c.head_dim)
    check(c.head_dim % 2 == 0, "head_dim must be even for RoPE, found {}", c.head_dim);
  check(c.rope_dims > 0 && c.rope_dims % 2 == 0, "rope_dims must be even, found {}", c.rope_dims);
  check(c.rope_dims <= c.head_dim, "rope_dims ({}) must not exceed head_dim ({})", c.rope_dims, c.head_dim);
  check(c.context <= kMaxRopeTable / c.rope_dims, "context ({}) times rope_dims ({}) must not exceed {}",
        c.context, c.rope_dims, kMaxRopeTable);
}

void check_extras(const ModelConfig& c) {
  check(!c.layer_scale || c.norm != NormKind::layer,
        "layer_scale needs norm = rms or rms_weight, found layer");
  check(!c.post_norm || c.norm == NormKind::rms_weight, "post_norm needs norm = rms_weight");
  check(!c.skip_gates || c.unet_skips, "skip_gates needs unet_skips = true");
  check(c.parallel_from < c.layers, "parallel_from ({}) must be below layers ({}), or -1 for none",
        c.parallel_from, c.layers);
  if (c.loop_count > 0) {
    check(c.loop_first <= c.loop_last && c.loop_last < c.layers,
          "loop_first ({}) must not exceed loop_last ({}), which must be below layers ({})", c.loop_first,
          c.loop_last, c.layers);
    check(c.unrolled() <= kMaxPasses, "the layer loop unrolls to {} blocks, expected at most {}",
          c.unrolled(), kMaxPasses);
  }
  check(c.bigram_buckets != 1, "bigram_buckets must be at least 2 (one is for the first token), found 1");
  check((c.bigram_buckets > 0) == (c.bigram_dim > 0), Hint{"set both, such as 4096 and 128, or neither"},
        "bigram_buckets ({}) and bigram_dim ({}) must be set together", c.bigram_buckets, c.bigram_dim);
}

// The ranges of the keys keep each product below 2^62.
void check_size(const ModelConfig& c) {
  const std::int64_t attention = 2 * c.dim * c.q_width() + 2 * c.dim * c.kv_width();
  const std::int64_t mlp = (c.gated_mlp() ? 3 : 2) * c.dim * c.mlp_hidden;
  const std::int64_t tables = c.vocab_size * c.dim * (c.tie_embeddings ? 1 : 2) +
                              (c.position == PositionKind::learned ? c.context * c.dim : 0) +
                              c.bigram_buckets * c.bigram_dim + c.dim * c.bigram_dim;
  const std::int64_t parameters = tables + c.layers * (attention + mlp);
  check(parameters <= kMaxParameters, Hint{"reduce vocab_size, layers, dim or mlp_hidden"},
        "the model would have {} parameters, expected at most {}", parameters, kMaxParameters);
}

void check_batch(const Config& config) {
  const TrainConfig& t = config.train;
  const std::int64_t context = config.model.context;
  check(t.batch_size == 0 && t.span_tokens > 0,
        "batch_tokens and span_tokens must be resolved, found {} and {}", t.batch_tokens, t.span_tokens);
  check(t.batch_tokens % context == 0, Hint{"a step consists of complete rows of context tokens"},
        "batch_tokens ({}) must be divisible by context ({})", t.batch_tokens, context);
  check(t.span_tokens % context == 0, "span_tokens ({}) must be divisible by context ({})", t.span_tokens,
        context);
  check(t.batch_tokens % t.span_tokens == 0, "batch_tokens ({}) must be divisible by span_tokens ({})",
        t.batch_tokens, t.span_tokens);
}

void check_rates(const OptimizerConfig& c) {
  const auto check_rate = [](std::string_view key, double rate) {
    check(rate >= 0 || rate == kFrozen, "{} must be 0 (lr), a positive rate, or -1 (frozen), found {}", key,
          rate);
  };
  check_rate("embed_lr", c.embed_lr);
  check_rate("head_lr", c.head_lr);
  check_rate("matrix_lr", c.matrix_lr);
  check_rate("scalar_lr", c.scalar_lr);
}

}  // namespace

void validate(const ModelConfig& config) {
  check_values({.model = config}, ConfigPart::model);
  check_attention(config);
  check_extras(config);
  check_size(config);
}

void check_has_end(const TrainConfig& config) {
  check(!config.makes_no_step(), "steps, epochs and max_seconds are all 0: set one of them");
}

void validate(const Config& config) {
  check_run_values(config);
  validate(config.model);
  check_batch(config);
  const TrainConfig& t = config.train;
  check_rates(config.optimizer);
  check(t.steps == 0 || t.epochs == 0, "steps ({}) and epochs ({}) cannot both be set", t.steps, t.epochs);
  check(!config.model.tie_embeddings || config.optimizer.head_lr == 0,
        Hint{"remove head_lr, or set tie_embeddings = false"},
        "head_lr ({}) has no effect with tie_embeddings, which makes the head part of the embedding",
        config.optimizer.head_lr);
  check(t.swa_start == 0 || t.ema_decay == 0, "swa_start ({}) and ema_decay ({}) cannot both be set",
        t.swa_start, t.ema_decay);
  check(t.qat_bits == 0 || t.qat_bits == 8 || t.qat_bits == 6 || t.qat_bits == 5,
        "qat_bits must be 0 (off), 8, 6 or 5, found {}", t.qat_bits);
  const auto check_pack_bits = [](const char* key, std::int64_t bits) {
    check(bits == 0 || bits == 8 || bits == 6 || bits == 5, "{} must be 0 (default), 8, 6 or 5, found {}",
          key, bits);
  };
  check_pack_bits("pack_bits", config.pack.bits);
  check_pack_bits("pack_embed_bits", config.pack.embed_bits);
  if (!config.lora) return;
  check(!config.optimizer.uses_muon(), Hint{"use --optimizer adamw"},
        "adapters are trained by Adam, but muon_steps is {}", config.optimizer.muon_steps);
  check(t.qat_bits == 0, Hint{"remove qat_bits: the weights that would be quantized are not trained"},
        "qat_bits ({}) and lora_rank ({}) cannot both be set", t.qat_bits, config.lora.rank);
}

}  // namespace thimble
