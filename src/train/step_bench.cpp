#include "train/step_bench.h"

#include <algorithm>
#include <map>
#include <vector>

#include "base/clock.h"
#include "base/rng.h"
#include "model/model.h"
#include "model/params.h"
#include "ops/cpu/gemm.h"
#include "ops/cuda_plugin.h"
#include "optim/device_step.h"
#include "optim/optimizer.h"
#include "train/run_cost.h"

namespace thimble {

std::vector<ProductShape> products_of(const ModelConfig& config) {
  const ParamTable params(config);
  std::map<std::pair<std::int64_t, std::int64_t>, double> counts;
  const auto add = [&](const ParamView& view) {
    if (view) ++counts[{view.rows, view.cols}];
  };
  for (const int layer : layer_order(config, true))
    for (const ParamView& view :
         {params.qkv(layer), params.attn_proj(layer), params.mlp_in(layer), params.mlp_proj(layer)})
      add(view);
  add(params.head());
  add(params.bigram_proj());
  std::vector<ProductShape> shapes;
  for (const auto& [size, count] : counts) shapes.push_back({size.first, size.second, count});
  return shapes;
}

namespace {

constexpr int kProductRepeats = 3;

class Bench {
 public:
  explicit Bench(const StepBenchRequest& request)
      : request_(request),
        rows_(micro_batch_rows(request.config)),
        model_(request.config.model, context_, request.dtype),
        optimizer_(model_.params(), request.config.optimizer, context_),
        gradients_(model_.params().block_size(), "the gradients", "lower dim, layers or vocab_size") {
    initialize(model_.params(), static_cast<std::uint64_t>(request.config.train.seed), model_.weights());
    model_.weights_changed();
    const std::int64_t T = request.config.model.context;
    result_.tokens = request.config.train.batch_tokens / (rows_ * T) * rows_ * T;
    result_.tokens = std::max(result_.tokens, rows_ * T);
  }

  StepBench run(const ProgressOutput& progress, const Interrupt& interrupt) {
    const auto shapes = products_of(request_.config.model);
    ProgressBar bar(progress, "measuring", "steps", static_cast<std::uint64_t>(request_.steps) + 1);
    Profile warm_up;
    step(warm_up, true);  // creates programs and plans; the FLOP count comes from its profile
    for (const auto& [key, time] : warm_up.times())
      if (key.second != Phase::recompute) result_.flops += time.work.flops;
    std::vector<double>&seconds = result_.all_seconds, &peak = result_.all_peaks;
    std::vector<double> optimizer;
    for (std::int64_t i = 0; i < request_.steps; ++i) {
      interrupt.throw_if_interrupted();
      bar.update(static_cast<std::uint64_t>(i) + 1);
      if (request_.ceiling) peak.push_back(peak_flops(shapes));
      const Times times = step(result_.profile, request_.profile);
      seconds.push_back(times.all);
      optimizer.push_back(times.optimizer);
    }
    result_.seconds = median(seconds);
    result_.optimizer_seconds = median(optimizer);
    if (!request_.ceiling) return result_;
    result_.peak_flops = median(peak);
    if (result_.flops_per_second() > result_.peak_flops)
      result_.peak_flops = ceiling_above(result_.flops_per_second(), std::ranges::max(peak),
                                         [&] { return peak_flops(shapes); });
    return result_;
  }

 private:
  struct Times {
    double all, optimizer;
  };

  std::int64_t rows() const { return rows_ * request_.config.model.context; }

  double peak_flops(const std::vector<ProductShape>& shapes) {
    return flops_of_products(shapes, rows()) /
           cpu::seconds_of_products(context_, shapes, rows(), request_.dtype, kProductRepeats);
  }

  Times step(Profile& profile, bool profiled) {
    const double started = seconds_now();
    model_.set_profile(profiled ? &profile : nullptr);
    std::ranges::fill(gradients_.all(), 0.0f);
    for (std::int64_t done = 0; done < result_.tokens; done += rows())
      model_.add_gradients(random_rows(), gradients_.all(),
                           {.qat_bits = static_cast<int>(request_.config.train.qat_bits),
                            .recompute = request_.config.train.checkpoint_activations});
    const double updating = seconds_now();
    optimizer_.update(context_, step_++, 1, model_.weights(), gradients_.all());
    model_.weights_changed();
    const double ended = seconds_now();
    return {ended - started, ended - updating};
  }

  Rows random_rows() {
    const auto vocabulary = static_cast<std::uint64_t>(request_.config.model.vocab_size);
    const auto random = [&] {
      std::vector<std::int32_t> tokens(static_cast<std::size_t>(rows()));
      for (std::int32_t& token : tokens) token = static_cast<std::int32_t>(random_.next_u64() % vocabulary);
      return tokens;
    };
    return grid_rows(request_.config.model, request_.config.model.context, random(), random());
  }

  const StepBenchRequest& request_;
  std::int64_t rows_;  // sequences of `context` tokens per micro-batch
  Context context_;
  Model model_;
  Optimizer optimizer_;
  FloatArena gradients_;
  Rng random_{1, 0, 0};
  std::int64_t step_ = 0;
  StepBench result_;
};

}  // namespace

double ceiling_above(double speed, double measured, const std::function<double()>& measure_again) {
  constexpr int kMost = 3;
  for (int i = 0; i < kMost && measured < speed; ++i) measured = std::max(measured, measure_again());
  return measured;
}

std::optional<double> fraction_of(double speed, double ceiling) {
  if (speed > ceiling) return std::nullopt;
  return speed / ceiling;
}

namespace {

// Steps on a GPU: one graph launch each, as in training.
class GpuBench {
 public:
  explicit GpuBench(const StepBenchRequest& request)
      : request_(request),
        config_(
            with_micro_batch(request.config, available_memory(*request.device), request.device->device())),
        context_(request.device),
        model_(config_.model, context_, request.dtype),
        optimizer_(model_.params(), config_.optimizer, context_),
        step_(context_, cuda_plugin().step, model_, optimizer_, config_.train),
        rows_(micro_batch_rows(config_) * config_.model.context) {
    initialize(model_.params(), static_cast<std::uint64_t>(config_.train.seed), model_.weights());
    model_.weights_changed();
    const std::int64_t count = std::max<std::int64_t>(config_.train.batch_tokens / rows_, 1);
    Rng random(1);
    for (std::int64_t i = 0; i < count; ++i) {
      std::vector<std::int32_t> tokens(static_cast<std::size_t>(rows_));
      for (std::int32_t& token : tokens)
        token = static_cast<std::int32_t>(random.below(static_cast<std::uint64_t>(config_.model.vocab_size)));
      batch_.push_back(grid_rows(config_.model, config_.model.context, tokens, tokens));
      for (float& weight : batch_.back().weight) weight /= static_cast<float>(count);
    }
    seeds_.resize(batch_.size());
    result_.tokens = count * rows_;
    result_.flops = summarize(config_, request.device->device()).training_flops_per_token *
                    static_cast<double>(result_.tokens);
  }

  StepBench run(const ProgressOutput& progress, const Interrupt& interrupt) {
    constexpr int kWarmUp = 3;  // the second step is captured as a graph
    for (int i = 0; i < kWarmUp; ++i) step();
    ProgressBar bar(progress, "measuring", "steps", static_cast<std::uint64_t>(request_.steps));
    for (std::int64_t i = 0; i < request_.steps; ++i) {
      interrupt.throw_if_interrupted();
      if (request_.ceiling) result_.all_peaks.push_back(request_.gpu_peak_flops(rows_));
      const double started = seconds_now();
      step();
      result_.all_seconds.push_back(seconds_now() - started);
      bar.advance(1);
    }
    result_.seconds = median(result_.all_seconds);
    if (!request_.ceiling) return result_;
    result_.peak_flops = ceiling_above(result_.flops_per_second(), std::ranges::max(result_.all_peaks),
                                       [&] { return request_.gpu_peak_flops(rows_); });
    return result_;
  }

 private:
  void step() {
    step_.queue({.step = next_++,
                 .multiplier = 1e-3,  // the weights stay near their initial values
                 .options = {.qat_bits = static_cast<int>(config_.train.qat_bits),
                             .recompute = config_.train.checkpoint_activations},
                 .micro_batches = batch_,
                 .dropout_seeds = seeds_});
    step_.oldest();
  }

  const StepBenchRequest& request_;
  Config config_;
  Context context_;
  Model model_;
  Optimizer optimizer_;
  DeviceStep step_;
  std::int64_t rows_;  // tokens per micro-batch
  std::vector<Rows> batch_;
  std::vector<std::uint64_t> seeds_;
  std::int64_t next_ = 0;
  StepBench result_;
};

}  // namespace

StepBench bench_steps(const StepBenchRequest& request, const ProgressOutput& progress,
                      const Interrupt& interrupt) {
  if (request.device->device() != Device::cpu) return GpuBench(request).run(progress, interrupt);
  return Bench(request).run(progress, interrupt);
}

}  // namespace thimble
