#include "model/summary.h"

#include <algorithm>

#include "model/params.h"

namespace thimble {

namespace {

constexpr std::int64_t kGuessedTokens = 8192;  // of a micro-batch when nothing says its size
constexpr std::int64_t kHeadChunkRows = 1024;  // see HeadLossAttributes

double forward_flops(const ModelConfig& c, const ParamTable& table) {
  std::int64_t elements = table.count(ParamGroup::matrix) + table.head().count();
  const double attention = 2.0 * static_cast<double>(c.q_width()) * static_cast<double>(c.context + 1);
  return 2.0 * static_cast<double>(elements) + static_cast<double>(c.layers) * attention;
}

std::int64_t optimizer_bytes(const TrainConfig& train, const ParamTable& table) {
  const std::int64_t by_muon = train.uses_muon() ? table.count(ParamGroup::matrix) : 0;
  const bool averages = train.swa_start > 0 || train.ema_decay > 0;
  return 8 * (table.count() - by_muon) + 4 * by_muon + (averages ? 4 * table.count() : 0);
}

std::int64_t micro_batch_tokens(const Config& config) {
  const std::int64_t context = config.model.context;
  if (config.train.micro_batch > 0) return config.train.micro_batch * context;
  const std::int64_t rows = std::max<std::int64_t>(1, kGuessedTokens / context);
  return std::min(config.train.batch_tokens, rows * context);
}

std::int64_t activation_bytes(const ModelConfig& c, std::int64_t tokens, DType compute) {
  const std::int64_t hidden = (c.gated_mlp() ? 3 : 2) * c.mlp_hidden;
  const std::int64_t layer = 5 * c.dim + 3 * c.q_width() + 3 * c.kv_width() + hidden;
  const std::int64_t row = c.layers * layer + 4 * c.dim;
  const std::int64_t logits = 2 * std::min(tokens, kHeadChunkRows) * c.vocab_size;
  return (tokens * row + logits) * dtype_bytes(compute);
}

}  // namespace

Summary summarise(const Config& config, DType compute) {
  const ParamTable table(config.model);
  const std::int64_t copy_bytes = compute == DType::f32 ? 0 : dtype_bytes(compute);
  Summary s;
  s.tensors = static_cast<std::int64_t>(table.all().size());
  s.parameters = table.count();
  for (int group = 0; group < kParamGroups; ++group)
    s.by_group[static_cast<std::size_t>(group)] = table.count(static_cast<ParamGroup>(group));
  s.forward_flops_per_token = forward_flops(config.model, table);
  s.training_flops_per_token = 3 * s.forward_flops_per_token;
  s.weight_bytes = table.block_size() * (4 + copy_bytes);
  s.gradient_bytes = table.block_size() * 4;
  s.optimizer_bytes = optimizer_bytes(config.train, table);
  const std::int64_t tokens = micro_batch_tokens(config);
  s.micro_batch_rows = tokens / config.model.context;
  s.activation_bytes = activation_bytes(config.model, tokens, compute);
  s.tokens_per_step = config.train.batch_tokens;
  s.training_tokens = static_cast<double>(config.train.steps) * static_cast<double>(s.tokens_per_step);
  return s;
}

std::string_view group_name(ParamGroup group) {
  switch (group) {
    case ParamGroup::embedding:
      return "embedding";
    case ParamGroup::head:
      return "head";
    case ParamGroup::matrix:
      return "matrix";
    case ParamGroup::scalar:
      return "scalar";
  }
  return "";
}

}  // namespace thimble
