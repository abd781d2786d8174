#include "train/card_step.h"

#include "base/clock.h"
#include "ops/cuda_plugin.h"
#include "optim/device_step.h"

namespace thimble {

namespace {

class CardStep final : public StepRunner {
 public:
  explicit CardStep(const StepParts& parts)
      : parts_(parts),
        step_(parts.context, cuda_plugin().step, parts.model, parts.optimizer, parts.config.train) {}

  StepResult run(const StepWish& wish) override {
    const double started = seconds_now();
    const Batch batch = parts_.loader.next();
    StepResult result{.tokens = batch.tokens,
                      .targets = batch.targets,
                      .input_seconds = seconds_now() - started,
                      .warning = batch.warning};
    std::vector<std::uint64_t> seeds;
    for (const Rows& rows : batch.micro_batches) {
      seeds.push_back(dropout_seed(parts_.config.train, wish.step, seeds.size()));
      result.bytes += bytes_of_targets(rows, parts_.bytes);
    }
    step_.queue(
        {.step = wish.step,
         .multiplier = wish.multiplier,
         .options = {.qat_bits = wish.qat_bits, .recompute = parts_.config.train.checkpoint_activations},
         .micro_batches = batch.micro_batches,
         .dropout_seeds = seeds});
    const StepOutcome outcome = step_.oldest();
    result.loss = outcome.loss;
    result.grad_norm = outcome.norm;
    result.updated = outcome.updated;
    return result;
  }

  void prime(int qat_bits) override {
    const ReadPosition before = parts_.loader.position();
    const Batch batch = parts_.loader.next();
    parts_.loader.seek(before);
    std::vector<float> gradients(parts_.model.weights().size());
    parts_.model.add_gradients(
        batch.micro_batches.front(), gradients,
        {.qat_bits = qat_bits, .recompute = parts_.config.train.checkpoint_activations});
  }

  void fetch() override {
    parts_.model.fetch_weights();
    parts_.optimizer.first_moments().fetch();
    parts_.optimizer.second_moments().fetch();
  }

  void send() override {
    parts_.model.weights_changed();
    parts_.optimizer.first_moments().send();
    parts_.optimizer.second_moments().send();
  }

 private:
  StepParts parts_;
  DeviceStep step_;
};

}  // namespace

std::unique_ptr<StepRunner> make_card_step(const StepParts& parts) {
  return std::make_unique<CardStep>(parts);
}

}  // namespace thimble
