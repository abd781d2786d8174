#include "model/config.h"

#include "base/error.h"
#include "model/config_keys.h"

namespace thimble {

namespace {

constexpr std::int64_t kDefaultRows = 16;
constexpr std::int64_t kSwigluMultiple = 64;  // of mlp_hidden: whole tiles for the GEMM
constexpr std::int64_t kGolfSpans = 8;  // pieces in which the golf loader reads a step (parameter-golf 1.6)

std::int64_t default_mlp_hidden(const ModelConfig& config) {
  switch (config.mlp) {
    case ActivationKind::relu2:
    case ActivationKind::leaky_relu2:
      return 2 * config.dim;
    case ActivationKind::relu:
    case ActivationKind::gelu:
      return 4 * config.dim;
    case ActivationKind::swiglu:
      break;
  }
  // Three matrices instead of two: 8/3 keeps the parameters of a plain MLP of 4 dim.
  const std::int64_t tiles = (8 * config.dim + 3 * kSwigluMultiple - 1) / (3 * kSwigluMultiple);
  return tiles * kSwigluMultiple;
}

std::int64_t default_span(std::int64_t batch_tokens, std::int64_t context) {
  const bool whole_rows = batch_tokens % (kGolfSpans * context) == 0;
  return whole_rows ? batch_tokens / kGolfSpans : batch_tokens;
}

}  // namespace

std::int64_t micro_batch_rows(const Config& config) {
  constexpr std::int64_t kTokens = 8192;
  const std::int64_t rows = std::max<std::int64_t>(1, config.train.batch_tokens / config.model.context);
  const std::int64_t wanted =
      config.train.micro_batch > 0 ? config.train.micro_batch : kTokens / config.model.context;
  return std::clamp<std::int64_t>(wanted, 1, rows);
}

double TrainConfig::rate(ParamGroup group) const {
  const double own = group == ParamGroup::embedding ? embed_lr
                     : group == ParamGroup::head    ? head_lr
                     : group == ParamGroup::matrix  ? matrix_lr
                                                    : scalar_lr;
  return own > 0 ? own : lr;
}

ModelConfig resolved(ModelConfig config) {
  check_values({config, {}}, false);
  if (config.head_dim == 0) {
    check(config.dim % config.heads == 0, Hint{"or set head_dim, which frees heads x head_dim from dim"},
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
  check_values(config, true);
  config.model = resolved(config.model);
  TrainConfig& train = config.train;
  if (train.batch_size > 0) {
    check(train.batch_tokens == 0, "batch_tokens ({}) and batch_size ({}) are both set: name one",
          train.batch_tokens, train.batch_size);
    train.batch_tokens = train.batch_size * config.model.context;
    train.batch_size = 0;
  }
  if (train.batch_tokens == 0) train.batch_tokens = kDefaultRows * config.model.context;
  if (train.span_tokens == 0) train.span_tokens = default_span(train.batch_tokens, config.model.context);
  validate(config);
  return config;
}

}  // namespace thimble
