#include "train/step_runner.h"

#include <algorithm>
#include <cmath>

#include "base/clock.h"
#include "base/rng.h"
#include "tensor/arena.h"
#include "train/card_step.h"

namespace thimble {

namespace {

constexpr std::uint64_t kDropoutStream = 0xD20;    // keeps dropout's seeds apart from the weights' streams
constexpr std::uint64_t kMostMicroBatches = 4096;  // seeds of a step, so that no two steps share one

// Weights, gradients and moments in host memory.
class HostStep final : public StepRunner {
 public:
  explicit HostStep(const StepParts& parts)
      : parts_(parts),
        gradients_(parts.model.params().block_size(), "the gradients", "lower dim, layers or vocab_size") {}

  StepResult run(const StepWish& wish) override {
    const double started = seconds_now();
    const Batch batch = parts_.loader.next();
    StepResult result{.tokens = batch.tokens,
                      .targets = batch.targets,
                      .input_seconds = seconds_now() - started,
                      .warning = batch.warning};
    std::ranges::fill(gradients_.all(), 0.0f);
    for (std::size_t i = 0; i < batch.micro_batches.size(); ++i) {
      result.loss += add_gradients(batch.micro_batches[i], wish.step, i, wish.qat_bits);
      result.bytes += bytes_of_targets(batch.micro_batches[i], parts_.bytes);
    }
    result.grad_norm = result.loss;
    if (!std::isfinite(result.loss)) return result;
    result.grad_norm = parts_.optimizer.update(parts_.context, wish.step, wish.multiplier,
                                               parts_.model.weights(), gradients_.all(), wish.sizes);
    result.updated = std::isfinite(result.grad_norm);
    parts_.model.weights_changed();
    return result;
  }

  void prime(int qat_bits) override {
    const ReadPosition before = parts_.loader.position();
    const Batch batch = parts_.loader.next();
    parts_.loader.seek(before);
    add_gradients(batch.micro_batches.front(), 0, 0, qat_bits);
    if (batch.micro_batches.back().count() != batch.micro_batches.front().count())
      add_gradients(batch.micro_batches.back(), 0, 0, qat_bits);
  }

 private:
  double add_gradients(const Rows& rows, std::int64_t step, std::size_t index, int qat_bits) {
    return parts_.model.add_gradients(rows, gradients_.all(),
                                      {.qat_bits = qat_bits,
                                       .recompute = parts_.config.train.checkpoint_activations,
                                       .dropout_seed = dropout_seed(parts_.config.train, step, index)});
  }

  StepParts parts_;
  FloatArena gradients_;
};

}  // namespace

std::uint64_t dropout_seed(const TrainConfig& config, std::int64_t step, std::size_t micro_batch) {
  Rng seed(static_cast<std::uint64_t>(config.seed),
           (static_cast<std::uint64_t>(step) * kMostMicroBatches + micro_batch) * 2, kDropoutStream);
  return seed.next_u64();
}

std::uint64_t bytes_of_targets(const Rows& rows, const ByteTable& bytes) {
  std::uint64_t sum = 0;
  for (std::size_t n = 0; n < rows.target.size(); ++n)
    if (rows.target[n] >= 0) sum += bytes.bytes(rows.token[n], rows.target[n]);
  return sum;
}

std::unique_ptr<StepRunner> make_step_runner(const StepParts& parts) {
  if (parts.context.device() == Device::cuda) return make_card_step(parts);
  return std::make_unique<HostStep>(parts);
}

}  // namespace thimble
