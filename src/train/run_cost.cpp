#include "train/run_cost.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "base/machine.h"
#include "base/table.h"
#include "model/model.h"
#include "model/params.h"
#include "ops/cpu/gemm.h"
#include "ops/table.h"
#include "optim/update_rule.h"

namespace thimble {

namespace {

// Resident memory of a run with a tiny model: code and tables of the libraries, thread stacks, and
// the kernels that oneDNN generates.
constexpr std::int64_t kProcessBytes = std::int64_t{32} << 20;

double forward_flops(const ModelConfig& c, const ParamTable& table, bool loop_on) {
  const std::int64_t elements = multiplied_elements(c, table, loop_on) + table.head().count();
  const auto T = static_cast<double>(c.context), W = static_cast<double>(c.window);
  double keys = 0;  // that a token attends to in all layers, on average
  for (const int layer : layer_order(c, loop_on))
    keys += c.is_local(layer) ? W - W * (W - 1) / (2 * T) : (T + 1) / 2;
  return 2.0 * static_cast<double>(elements) + 4.0 * static_cast<double>(c.q_width()) * keys;
}

std::int64_t average_bytes(const TrainConfig& train, const ParamTable& table) {
  return train.swa_start > 0 || train.ema_decay > 0 ? 4 * table.count() : 0;
}

std::int64_t scoring_bytes(const Config& config, std::int64_t rows, DType dtype, const FrozenBase& base) {
  const GptGraph graph = record_gpt(config.model, ParamTable(config.model),
                                    {.mode = Mode::scoring,
                                     .rows = rows,
                                     .loop_on = config.state.loop_on,
                                     .dtype = dtype,
                                     .stored = base.weights,
                                     .adapters = base.adapters});
  return plan_memory(graph.tape, make_schedule(graph.tape, {.keep = {graph.nats}}), cpu_backend())
      .arena_bytes;
}

// The one-row program that generates the golden output and the samples (infer/generate.h).
std::int64_t generation_bytes(const Config& config, DType dtype, const FrozenBase& base) {
  const ModelConfig& model = config.model;
  const bool loop_on = config.state.loop_on;
  const GptGraph graph = record_gpt(model, ParamTable(model),
                                    {.mode = Mode::decoding,
                                     .rows = 1,
                                     .gathered = 1,
                                     .slots = 1,
                                     .loop_on = loop_on,
                                     .dtype = dtype,
                                     .stored = base.weights,
                                     .adapters = base.adapters});
  return plan_memory(graph.tape, make_schedule(graph.tape, {.keep = {graph.logits}}), cpu_backend())
      .arena_bytes;
}

// The KV cache of generation, and the programs of validation that do not fit into the memory of the
// training program. A smaller last batch needs a second scoring program, half as large on average.
std::int64_t validation_bytes(const Config& config, std::int64_t training_rows, std::int64_t training_bytes,
                              DType dtype, const FrozenBase& base) {
  const ModelConfig& model = config.model;
  const std::int64_t T = model.context, val_tokens = config.train.val_tokens;
  const std::int64_t most = std::max<std::int64_t>(1, score_rows_beside(training_rows) / T) * T;
  const bool one_batch = val_tokens > 0 && val_tokens <= most;
  const std::int64_t scoring =
      scoring_bytes(config, one_batch ? (val_tokens + T - 1) / T * T : most, dtype, base);
  const std::int64_t generation = generation_bytes(config, dtype, base);
  std::int64_t bytes = cache_bytes(model, 1, dtype, config.state.loop_on);
  if (scoring > training_bytes) bytes += one_batch ? scoring : scoring * 3 / 2;
  if (generation > training_bytes) bytes += generation;
  return bytes;
}

// The buffer in which matrix products pack their operands; sized for the largest product.
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

// The weights, and the largest matrix of a block unpacked. A head is unpacked in smaller panels.
std::int64_t frozen_bytes(const StoredWeights& base, const ParamTable& model, DType dtype) {
  std::int64_t largest = 0;
  for (const ParamView& weight : {model.qkv(0), model.attn_proj(0), model.mlp_in(0), model.mlp_proj(0)})
    if (base.view(weight).values.dtype != dtype)
      largest = std::max(largest, weight.count() * dtype_bytes(dtype));
  return base.bytes() + base.file_bytes() + largest;
}

// The dtype of activations. A config may be planned for another machine, so f16 is always accepted.
DType planned_dtype(const TrainConfig& config, Device device) {
  return config.dtype == ComputeDType::f16 ? DType::f16 : compute_dtype(config.dtype, device);
}

}  // namespace

Summary summarize(const Config& config, Device device, const StoredWeights* base) {
  const ParamTable model(config.model), table = trained_params(config);
  Summary s;
  s.tensors = static_cast<std::int64_t>(table.all().size());
  s.parameters = table.count();
  for (int group = 0; group < kParamGroups; ++group)
    s.by_group[static_cast<std::size_t>(group)] = table.count(static_cast<ParamGroup>(group));
  for (const RuleParams& by : params_by_rule(table, config.optimizer))
    for (const Param* param : by.params) {
      std::vector<std::string>& titles = s.rules_by_group[static_cast<std::size_t>(param->group)];
      if (std::ranges::find(titles, by.rule->title) == titles.end()) titles.emplace_back(by.rule->title);
    }
  s.forward_flops_per_token = forward_flops(config.model, model, config.state.loop_on);
  s.training_flops_per_token = (config.lora ? 2 : 3) * s.forward_flops_per_token;
  s.weight_bytes = table.block_size() * 4;
  s.gradient_bytes = table.block_size() * 4;
  const OptimizerCost optimizer = optimizer_cost(table, config.optimizer);
  s.optimizer_bytes = optimizer.state_bytes + average_bytes(config.train, table);
  s.update_bytes = optimizer.workspace_bytes;
  s.micro_batch_rows = micro_batch_rows(config);
  const DType dtype = planned_dtype(config.train, device);
  const std::int64_t rows = s.micro_batch_rows * config.model.context;
  std::optional<AdapterTable> adapters;
  if (base) adapters.emplace(config.model, config.lora);
  const FrozenBase frozen{base, adapters ? &*adapters : nullptr};
  s.plan = training_plan(
      config.model, rows,
      {.qat_bits = static_cast<int>(config.train.qat_bits), .recompute = config.train.checkpoint_activations},
      dtype, device, config.state.loop_on, frozen);
  if (base) s.base_bytes = frozen_bytes(*base, model, dtype);
  // GPU memory does not contain the process. Validation adapts to the memory that is left.
  if (device == Device::cpu) {
    s.validation_bytes = validation_bytes(config, rows, s.plan.arena_bytes, dtype, frozen);
    s.process_bytes = kProcessBytes + product_bytes(model, rows, dtype);
  }
  s.tokens_per_step = config.train.batch_tokens;
  s.training_tokens = static_cast<double>(config.train.steps) * static_cast<double>(s.tokens_per_step);
  return s;
}

std::string memory_text(const Summary& s, std::size_t width) {
  const MemoryPlan& plan = s.plan;
  const std::int64_t unshared =
      plan.prepared_bytes + plan.activation_bytes + plan.gradient_bytes + plan.scratch_bytes;
  Table table({"memory", "MiB"});
  const auto row = [&](std::string_view what, std::int64_t bytes) {
    if (bytes != 0)
      table.row({std::string(what), fmt::format("{:.1f}", static_cast<double>(bytes) / (1 << 20))});
  };
  row("base weights", s.base_bytes);
  row("parameters", s.weight_bytes);
  row("parameter gradients", s.gradient_bytes);
  row("optimizer", s.optimizer_bytes);
  row("optimizer scratch", s.update_bytes);
  row("prepared weights", plan.prepared_bytes);
  row("activations", plan.activation_bytes);
  row("activation gradients", plan.gradient_bytes);
  row("scratch", plan.scratch_bytes);
  row("saved by reuse", plan.arena_bytes - unshared);
  row("validation", s.validation_bytes);
  row("program and libraries", s.process_bytes);
  row("total", s.total_bytes());
  return table.text(width);
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

namespace {

constexpr double kUsable = 0.85;  // fraction of available memory; validation and checkpoints need some too

// A GPU reaches its best throughput at about this many tokens per micro-batch
// (bench/cuda_step.cpp).
constexpr std::int64_t kGpuTokens = 262144;

std::int64_t preferred_rows(const Config& config, Device device) {
  if (device == Device::cpu) return micro_batch_rows(config);
  const std::int64_t all = std::max<std::int64_t>(1, config.train.batch_tokens / config.model.context);
  return std::clamp<std::int64_t>(kGpuTokens / config.model.context, 1, all);
}

// The device that is planned for, and the base of adapters.
struct PlannedOn {
  Device device;
  const StoredWeights* base;
};

Summary summary_of(const Config& config, std::int64_t rows, const PlannedOn& on) {
  Config with_rows = config;
  with_rows.train.micro_batch = rows;
  return summarize(with_rows, on.device, on.base);
}

std::int64_t arena_bytes(const Config& config, std::int64_t rows, const PlannedOn& on) {
  return rows == 0 ? 0 : summary_of(config, rows, on).plan.arena_bytes;
}

// A smaller last micro-batch needs a second program, which stays in memory next to the first. With
// a layer loop, priming creates the programs with the loop while those without it still exist.
std::int64_t needed_bytes(const Config& config, std::int64_t rows, std::int64_t all, const PlannedOn& on) {
  const std::int64_t left = all % rows;
  std::int64_t needed = summary_of(config, rows, on).total_bytes() + arena_bytes(config, left, on);
  if (config.model.loop_count == 0 || config.train.loop_start == 0 || config.train.prime_steps < 2)
    return needed;
  Config before = config;
  before.state.loop_on = false;
  return needed + arena_bytes(before, rows, on) + arena_bytes(before, left, on);
}

// The largest divisor of `all` up to `most`, which needs no second program; `most` itself if that
// divisor is not more than half of `most`.
std::int64_t even_rows(std::int64_t all, std::int64_t most) {
  for (std::int64_t rows = most; 2 * rows > most; --rows)
    if (all % rows == 0) return rows;
  return most;
}

}  // namespace

Config with_micro_batch(Config config, std::int64_t available_bytes, Device device,
                        const StoredWeights* base) {
  const PlannedOn on{device, base};
  std::int64_t& rows = config.train.micro_batch;
  if (rows > 0) {
    rows = micro_batch_rows(config);
    return config;
  }
  const std::int64_t all = std::max<std::int64_t>(1, config.train.batch_tokens / config.model.context);
  const std::int64_t preferred = preferred_rows(config, device);
  std::int64_t pieces = (all + preferred - 1) / preferred;
  const auto usable = static_cast<std::int64_t>(kUsable * static_cast<double>(available_bytes));
  while (true) {
    const std::int64_t fewer = even_rows(all, (all + pieces - 1) / pieces);
    if (available_bytes == 0 || needed_bytes(config, fewer, all, on) <= usable) {
      rows = fewer;
      return config;
    }
    check(fewer > 1, Hint{"lower context, dim, layers or vocab_size"},
          "training with a micro-batch of one row needs {}, but only {} of {}memory is available",
          in_bytes(static_cast<double>(needed_bytes(config, 1, all, on))),
          in_bytes(static_cast<double>(available_bytes)), device == Device::cuda ? "the GPU's " : "");
    pieces = std::min(all, 2 * pieces);
  }
}

std::int64_t available_memory() {
  return probe_machine().available_bytes;
}

std::int64_t available_memory(const DeviceRuntime& runtime) {
  return runtime.device() == Device::cpu ? available_memory() : runtime.available_bytes();
}

}  // namespace thimble
