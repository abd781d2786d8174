#include "train/step_runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <optional>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "base/rng.h"
#include "dist/communicator.h"
#include "ops/cuda_plugin.h"
#include "optim/device_step.h"
#include "optim/gradient_buckets.h"
#include "tensor/arena.h"

namespace thimble {

namespace {

constexpr std::uint64_t kDropoutStream = 0xD20;  // different from the streams of weight initialization
// Each step has 4096 seeds of one stream. Micro-batches beyond those have seeds of further streams,
// so that no two share one.
constexpr std::uint64_t kSeedsPerStep = 4096;
constexpr int kFurtherStreamShift = 32;

// Weights, gradients and moments in host memory.
class HostStep final : public StepRunner {
 public:
  explicit HostStep(const StepParts& parts)
      : parts_(parts),
        gradients_(parts.model.trained_params().block_size(), "the gradients",
                   "lower dim, layers or vocab_size"),
        sums_(parts.ranks, gradients_.all()) {
    if (parts.ranks.size() > 1) parts_.optimizer.share_over(parts.ranks);
  }

  StepResult run(const StepRequest& request) override {
    const double started = seconds_now();
    const Batch batch = parts_.loader.next();
    StepResult result{.tokens = batch.tokens,
                      .targets = batch.targets,
                      .input_seconds = seconds_now() - started,
                      .warning = batch.warning};
    make_room(batch, {.qat_bits = request.qat_bits, .loop_on = parts_.model.loop_on()});
    std::ranges::fill(gradients_.all(), 0.0f);
    for (std::size_t i = 0; i < batch.micro_batches.size(); ++i) {
      const bool last = i + 1 == batch.micro_batches.size();
      result.loss += add_gradients(batch.micro_batches[i], request.step, i, request.qat_bits,
                                   last && parts_.ranks.size() > 1);
      result.bytes += bytes_of_targets(batch.micro_batches[i], parts_.bytes);
    }
    sum_over_ranks(parts_.ranks, request.step, result);
    result.grad_norm = result.loss;
    if (!std::isfinite(result.loss)) return result;
    result.grad_norm = parts_.optimizer.update(parts_.context, request.step, request.multiplier,
                                               parts_.model.weights(), gradients_.all(), request.sizes);
    result.updated = std::isfinite(result.grad_norm);
    parts_.model.weights_changed();
    return result;
  }

  void prime(int qat_bits) override {
    const ReadPosition before = parts_.loader.position();
    const Batch batch = parts_.loader.next();
    parts_.loader.seek(before);
    add_gradients(batch.micro_batches.front(), 0, 0, qat_bits, false);
    if (batch.micro_batches.back().count() != batch.micro_batches.front().count())
      add_gradients(batch.micro_batches.back(), 0, 0, qat_bits, false);
  }

  void reserve(int qat_bits) override {
    const ReadPosition before = parts_.loader.position();
    const Batch batch = parts_.loader.next();
    parts_.loader.seek(before);
    make_room(batch, {.qat_bits = qat_bits, .loop_on = parts_.model.loop_on()});
    parts_.model.training_program(
        batch.micro_batches.front().count(),
        {.qat_bits = qat_bits, .recompute = parts_.config.train.checkpoint_activations});
  }

 private:
  // The settings that programs depend on and that change during a run.
  struct Phase {
    int qat_bits = 0;
    bool loop_on = true;
    bool operator==(const Phase&) const = default;
  };

  // Frees the programs of the previous phase: they are never used again, and each one holds memory
  // for all activations.
  void make_room(const Batch& batch, Phase phase) {
    const std::array rows = {batch.micro_batches.front().count(), batch.micro_batches.back().count()};
    if (phase_ && *phase_ != phase)
      parts_.model.keep_training_programs(
          rows, {.qat_bits = phase.qat_bits, .recompute = parts_.config.train.checkpoint_activations});
    phase_ = phase;
  }

  // `sum_ranks`: this is the last micro-batch, so the sum of the gradients over ranks can start.
  double add_gradients(const Rows& rows, std::int64_t step, std::size_t index, int qat_bits, bool sum_ranks) {
    GradientOptions options{.qat_bits = qat_bits,
                            .recompute = parts_.config.train.checkpoint_activations,
                            .dropout_seed = dropout_seed(parts_.config.train, parts_.ranks, step, index)};
    if (!sum_ranks) return parts_.model.add_gradients(rows, gradients_.all(), options);
    BoundProgram& program = parts_.model.training_program(rows.count(), options);
    options.after_step = &sums_.begin(program, fmt::format("step {}", step + 1));
    const double loss = parts_.model.add_gradients(rows, gradients_.all(), options);
    sums_.wait();
    return loss;
  }

  StepParts parts_;
  FloatArena gradients_;
  GradientSums sums_;
  std::optional<Phase> phase_;  // of the last step
};

}  // namespace

std::uint64_t dropout_seed(const TrainConfig& config, const Communicator& ranks, std::int64_t step,
                           std::size_t micro_batch) {
  const std::size_t index =
      micro_batch * static_cast<std::size_t>(ranks.size()) + static_cast<std::size_t>(ranks.rank());
  const std::uint64_t offset = static_cast<std::uint64_t>(step) * kSeedsPerStep + index % kSeedsPerStep;
  Rng seed(static_cast<std::uint64_t>(config.seed), offset * 2,
           kDropoutStream + ((index / kSeedsPerStep) << kFurtherStreamShift));
  return seed.next_u64();
}

std::uint64_t bytes_of_targets(const Rows& rows, const ByteTable& bytes) {
  std::uint64_t sum = 0;
  for (std::size_t n = 0; n < rows.target.size(); ++n)
    if (rows.target[n] >= 0) sum += bytes.bytes(rows.token[n], rows.target[n]);
  return sum;
}

void sum_over_ranks(Communicator& ranks, std::int64_t step, StepResult& result) {
  if (ranks.size() == 1) return;
  struct Share {
    double loss;
    std::uint64_t bytes;
  };
  const std::vector<Share> all =
      gather_records(ranks, Share{result.loss, result.bytes}, fmt::format("the loss, step {}", step + 1));
  result.loss = 0;
  result.bytes = 0;
  for (const Share& one : all) {
    result.loss += one.loss;
    result.bytes += one.bytes;
  }
}

std::unique_ptr<StepRunner> make_step_runner(const StepParts& parts) {
  if (parts.context.device() == Device::cuda) return make_gpu_step(parts);
  return std::make_unique<HostStep>(parts);
}

namespace {

class GpuStep final : public StepRunner {
 public:
  explicit GpuStep(const StepParts& parts)
      : parts_(parts),
        step_(parts.context, cuda_plugin().step, parts.model, parts.optimizer, parts.config.train, true,
              parts.gpus) {}

  StepResult run(const StepRequest& request) override {
    const double started = seconds_now();
    const Batch batch = parts_.loader.next();
    StepResult result{.tokens = batch.tokens,
                      .targets = batch.targets,
                      .input_seconds = seconds_now() - started,
                      .warning = batch.warning};
    std::vector<std::uint64_t> seeds;
    while (seeds.size() < batch.micro_batches.size())
      seeds.push_back(dropout_seed(parts_.config.train, parts_.ranks, request.step, seeds.size()));
    // This barrier times out and names the missing rank; NCCL alone would wait forever.
    if (parts_.ranks.size() > 1) parts_.ranks.barrier(fmt::format("the GPUs, step {}", request.step + 1));
    step_.queue(
        {.step = request.step,
         .multiplier = request.multiplier,
         .options = {.qat_bits = request.qat_bits, .recompute = parts_.config.train.checkpoint_activations},
         .micro_batches = batch.micro_batches,
         .dropout_seeds = seeds});
    for (const Rows& rows : batch.micro_batches)  // while the GPU works
      result.bytes += bytes_of_targets(rows, parts_.bytes);
    const StepOutcome outcome = wait_for_outcome(request.step);
    if (parts_.gpus) parts_.gpus->check_errors();
    result.loss = outcome.loss;
    result.grad_norm = outcome.norm;
    result.updated = outcome.updated;
    result.loss_scale = outcome.loss_scale;
    result.skipped = !outcome.updated && outcome.loss_scale >= static_cast<double>(kMinLossScale);
    sum_over_ranks(parts_.ranks, request.step, result);
    return result;
  }

  void prime(int qat_bits) override {
    const ReadPosition before = parts_.loader.position();
    const Batch batch = parts_.loader.next();
    parts_.loader.seek(before);
    std::vector<float> gradients(parts_.model.weights().size());
    const auto add = [&](const Rows& rows) {
      parts_.model.add_gradients(
          rows, gradients, {.qat_bits = qat_bits, .recompute = parts_.config.train.checkpoint_activations});
    };
    add(batch.micro_batches.front());
    if (batch.micro_batches.back().count() != batch.micro_batches.front().count())
      add(batch.micro_batches.back());
  }

  void fetch() override {
    // As in run(): names a missing rank.
    if (parts_.ranks.size() > 1) parts_.ranks.barrier("fetching the weights");
    step_.gather_states();
    parts_.model.fetch_weights();
    parts_.optimizer.fetch_states();
    step_.fetch_loss_scale();
  }

  void fetch_weights() override { parts_.model.fetch_weights(); }

  void send() override {
    parts_.model.weights_changed();
    parts_.optimizer.send_states();
    step_.send_loss_scale();
  }

 private:
  // Waits for the step's result. With several ranks the wait has a timeout, in case a GPU hangs
  // while waiting for another one.
  StepOutcome wait_for_outcome(std::int64_t step) {
    if (parts_.ranks.size() == 1) return step_.oldest();
    const double started = seconds_now();
    while (true) {
      if (const std::optional<StepOutcome> outcome = step_.finished()) return *outcome;
      if (parts_.gpus) parts_.gpus->check_errors();
      if (seconds_now() - started > parts_.ranks.timeout_seconds())
        fail(Hint{"resume from the last checkpoint with --resume; a GPU or a link between GPUs hangs"},
             "waited {:g} s for the GPUs in step {}", parts_.ranks.timeout_seconds(), step + 1);
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }

  StepParts parts_;
  DeviceStep step_;
};

}  // namespace

std::unique_ptr<StepRunner> make_gpu_step(const StepParts& parts) {
  return std::make_unique<GpuStep>(parts);
}

}  // namespace thimble
