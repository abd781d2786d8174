#include "train/card_step.h"

#include <fmt/format.h>

#include <chrono>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "ops/cuda_plugin.h"
#include "optim/device_step.h"

namespace thimble {

namespace {

class CardStep final : public StepRunner {
 public:
  explicit CardStep(const StepParts& parts)
      : parts_(parts),
        step_(parts.context, cuda_plugin().step, parts.model, parts.optimizer, parts.config.train, true,
              parts.cards) {}

  StepResult run(const StepWish& wish) override {
    const double started = seconds_now();
    const Batch batch = parts_.loader.next();
    StepResult result{.tokens = batch.tokens,
                      .targets = batch.targets,
                      .input_seconds = seconds_now() - started,
                      .warning = batch.warning};
    std::vector<std::uint64_t> seeds;
    while (seeds.size() < batch.micro_batches.size())
      seeds.push_back(dropout_seed(parts_.config.train, parts_.ranks, wish.step, seeds.size()));
    // A rank that does not come is named here; the cards alone would only wait.
    if (parts_.ranks.size() > 1) parts_.ranks.barrier(fmt::format("the cards, step {}", wish.step + 1));
    step_.queue(
        {.step = wish.step,
         .multiplier = wish.multiplier,
         .options = {.qat_bits = wish.qat_bits, .recompute = parts_.config.train.checkpoint_activations},
         .micro_batches = batch.micro_batches,
         .dropout_seeds = seeds});
    for (const Rows& rows : batch.micro_batches)  // while the card works
      result.bytes += bytes_of_targets(rows, parts_.bytes);
    const StepOutcome outcome = landed(wish.step);
    if (parts_.cards) parts_.cards->check_errors();
    result.loss = outcome.loss;
    result.grad_norm = outcome.norm;
    result.updated = outcome.updated;
    result.loss_scale = outcome.loss_scale;
    result.skipped = !outcome.updated && outcome.loss_scale >= static_cast<double>(kLeastLossScale);
    add_up(parts_.ranks, wish.step, result);
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
    // As in run(): who does not come is named here.
    if (parts_.ranks.size() > 1) parts_.ranks.barrier("fetching the weights");
    step_.gather_momenta();
    parts_.model.fetch_weights();
    parts_.optimizer.first_moments().fetch();
    parts_.optimizer.second_moments().fetch();
    step_.fetch_loss_scale();
  }

  void fetch_weights() override { parts_.model.fetch_weights(); }

  void send() override {
    parts_.model.weights_changed();
    parts_.optimizer.first_moments().send();
    parts_.optimizer.second_moments().send();
    step_.send_loss_scale();
  }

 private:
  // Of several ranks no wait is endless, not even one for a card that waits for another.
  StepOutcome landed(std::int64_t step) {
    if (parts_.ranks.size() == 1) return step_.oldest();
    const double started = seconds_now();
    while (true) {
      if (const std::optional<StepOutcome> outcome = step_.finished()) return *outcome;
      if (parts_.cards) parts_.cards->check_errors();
      if (seconds_now() - started > parts_.ranks.timeout_seconds())
        fail(Hint{"a card or a link between them hangs; the last checkpoint is good: go on with --resume"},
             "waited {:g} s for the cards in step {}", parts_.ranks.timeout_seconds(), step + 1);
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }

  StepParts parts_;
  DeviceStep step_;
};

}  // namespace

std::unique_ptr<StepRunner> make_card_step(const StepParts& parts) {
  return std::make_unique<CardStep>(parts);
}

}  // namespace thimble
