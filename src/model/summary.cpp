#include "model/summary.h"

#include <algorithm>
#include <map>

#include "model/compute_dtype.h"
#include "model/model.h"
#include "model/params.h"
#include "ops/cpu/gemm.h"
#include "ops/newton_schulz.h"

namespace thimble {

namespace {

// Of a run with next to no model, as the system counts it: code and tables of the libraries, their threads' stacks, the
// kernels that oneDNN generates.
constexpr std::int64_t kProcessBytes = std::int64_t{32} << 20;

double forward_flops(const ModelConfig& c, const ParamTable& table) {
  const std::int64_t elements = multiplied_elements(c, table) + table.head().count();
  const double attention = 2.0 * static_cast<double>(c.q_width()) * static_cast<double>(c.context + 1);
  return 2.0 * static_cast<double>(elements) + static_cast<double>(c.passes()) * attention;
}

std::int64_t optimizer_bytes(const TrainConfig& train, const ParamTable& table) {
  const std::int64_t by_muon = train.uses_muon() ? table.count(ParamGroup::matrix) : 0;
  const bool averages = train.swa_start > 0 || train.ema_decay > 0;
  return 8 * (table.count() - by_muon) + 4 * by_muon + (averages ? 4 * table.count() : 0);
}

// Updates of all matrices of one shape together, and the factors of one product (optim/muon.h).
std::int64_t update_bytes(const TrainConfig& train, const ParamTable& table) {
  if (!train.uses_muon()) return 0;
  std::map<std::pair<std::int64_t, std::int64_t>, std::int64_t> elements;
  std::int64_t updates = 0, scratch = 0;
  for (const Param& param : table.all()) {
    if (param.group != ParamGroup::matrix) continue;
    updates = std::max(updates, elements[{param.rows, param.cols}] += param.count());
    scratch = std::max(scratch, newton_schulz_scratch(param.rows, param.cols));
  }
  return 4 * (updates + scratch);
}

MemoryPlan scoring_plan(const ModelConfig& config, std::int64_t rows, DType dtype) {
  const GptGraph graph =
      record_gpt(config, ParamTable(config), {.mode = Mode::scoring, .rows = rows, .dtype = dtype});
  return plan_memory(graph.tape, make_schedule(graph.tape, {.keep = {graph.nats}}), Backend::cpu);
}

// Validation scores about 8192 tokens at a time (eval/score.h); what is left for the last time makes a second
// program, half as large on average. The golden output of a checkpoint takes 32 rows, the texts that are said 64.
std::int64_t validation_bytes(const Config& config, DType dtype) {
  constexpr std::int64_t kTokens = 8192, kGolden = 32, kSaid = 64;
  const std::int64_t T = config.model.context, wanted = config.train.val_tokens;
  const std::int64_t most = std::max<std::int64_t>(1, kTokens / T) * T;
  std::int64_t small = scoring_plan(config.model, std::min(kGolden, T), dtype).arena_bytes;
  if (T > kGolden) small += scoring_plan(config.model, std::min(kSaid, T), dtype).arena_bytes;
  if (wanted > 0 && wanted <= most)
    return small + scoring_plan(config.model, (wanted + T - 1) / T * T, dtype).arena_bytes;
  return small + scoring_plan(config.model, most, dtype).arena_bytes * 3 / 2;
}

// What matrix products pack their factors into: once, for the largest of them.
std::int64_t product_bytes(const ParamTable& table, std::int64_t rows, DType dtype) {
  std::int64_t largest = 0;
  const auto take = [&](const ParamView& weight, std::int64_t rows_at_a_time) {
    if (weight)
      largest = std::max(largest, cpu::training_workspace(dtype, rows_at_a_time, weight.rows, weight.cols));
  };
  for (const ParamView& weight : {table.qkv(0), table.attn_proj(0), table.mlp_in(0), table.mlp_proj(0)})
    take(weight, rows);
  take(table.head(), std::min<std::int64_t>(rows, GptOptions{}.head_chunk));
  return largest;
}

// What activations are kept in. A config may be planned for another machine, so f16 is not refused here.
DType planned_dtype(const TrainConfig& config, Device device) {
  return config.dtype == ComputeDType::f16 ? DType::f16 : compute_dtype(config.dtype, device);
}

}  // namespace

Summary summarise(const Config& config, Device device) {
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
  s.update_bytes = update_bytes(config.train, table);
  s.micro_batch_rows = micro_batch_rows(config);
  const DType dtype = planned_dtype(config.train, device);
  if (device == Device::cpu) {  // a card's own memory holds no process, and validation waits for what is free
    s.validation_bytes = validation_bytes(config, dtype);
    s.process_bytes = kProcessBytes + product_bytes(table, s.micro_batch_rows * config.model.context, dtype);
  }
  s.plan = training_plan(
      config.model, s.micro_batch_rows * config.model.context,
      {.qat_bits = static_cast<int>(config.train.qat_bits), .recompute = config.train.checkpoint_activations},
      dtype, device);
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
