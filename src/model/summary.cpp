#include "model/summary.h"

#include "model/compute_dtype.h"
#include "model/model.h"

namespace thimble {

namespace {

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

// What activations are kept in; a config may be planned for another machine, so that nothing is refused here.
DType planned_dtype(const TrainConfig& config) {
  if (config.dtype == ComputeDType::automatic) return compute_dtype(config.dtype, Device::cpu);
  return config.dtype == ComputeDType::f32 ? DType::f32 : DType::bf16;
}

}  // namespace

Summary summarise(const Config& config) {
  const ParamTable table(config.model);
  Summary s;
  s.tensors = static_cast<std::int64_t>(table.all().size());
  s.parameters = table.count();
  for (int group = 0; group < kParamGroups; ++group)
    s.by_group[static_cast<std::size_t>(group)] = table.count(static_cast<ParamGroup>(group));
  s.forward_flops_per_token = forward_flops(config.model, table);
  s.training_flops_per_token = 3 * s.forward_flops_per_token;
  s.weight_bytes = table.block_size() * 4;
  s.gradient_bytes = table.block_size() * 4;
  s.optimizer_bytes = optimizer_bytes(config.train, table);
  s.micro_batch_rows = micro_batch_rows(config);
  s.plan = training_plan(config.model, s.micro_batch_rows * config.model.context,
                         {.qat_bits = static_cast<int>(config.train.qat_bits)}, planned_dtype(config.train));
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
