// What capturing an optimizer step as a CUDA graph saves, and how fast a step of the golf baseline is: forward, backward
// and Adam on one card, queued kernel by kernel and as one launch.
#include <fmt/format.h>

#include "base/error.h"
#include "base/median.h"
#include "base/rng.h"
#include "base/table.h"
#include "model/config_builder.h"
#include "ops/cuda_plugin.h"
#include "optim/device_step.h"

namespace thimble {
namespace {

constexpr int kWarmUp = 4, kSteps = 20, kRepeats = 5;

class StepTimer {
 public:
  StepTimer(const std::shared_ptr<DeviceRuntime>& card, const Config& config, std::int64_t tokens,
            bool capture)
      : card_(card),
        context_(card),
        model_(config.model, context_, DType::bf16),
        optimizer_(model_.params(), config.train, context_),
        step_(context_, cuda_plugin().step, model_, optimizer_, config.train, capture) {
    initialise(model_.params(), 1, model_.weights());
    model_.weights_changed();
    std::vector<std::int32_t> input(static_cast<std::size_t>(tokens));
    Rng random(1);
    for (std::int32_t& token : input)
      token = static_cast<std::int32_t>(random.below(static_cast<std::uint64_t>(config.model.vocab_size)));
    batch_.push_back(grid_rows(config.model, config.model.context, input, input));
    run(kWarmUp);
  }

  double milliseconds() {
    const auto before = card_->make_event(), after = card_->make_event();
    before->record();
    run(kSteps);
    after->record();
    after->wait();
    return after->milliseconds_since(*before) / kSteps;
  }

 private:
  void run(int steps) {
    const std::uint64_t seed = 0;
    for (int i = 0; i < steps; ++i)
      step_.queue({.step = i,
                   .multiplier = 1e-3,
                   .options = {},
                   .micro_batches = batch_,
                   .dropout_seeds = {&seed, 1}});
    while (step_.on_their_way() > 0) step_.oldest();
  }

  std::shared_ptr<DeviceRuntime> card_;
  Context context_;
  Model model_;
  Optimizer optimizer_;
  DeviceStep step_;
  std::vector<Rows> batch_;
};

void run() {
  const auto card = open_cuda();
  ConfigBuilder settings;
  settings.preset("golf");
  settings.set("muon_steps=0");
  const Config config = settings.resolve();
  Table table({"tokens a step", "queued, ms", "captured, ms", "ratio", "tokens/s"});
  for (const std::int64_t tokens : {16384, 65536}) {
    StepTimer queued(card, config, tokens, false), captured(card, config, tokens, true);
    std::vector<double> one, other;
    for (int i = 0; i < kRepeats; ++i) {
      one.push_back(queued.milliseconds());
      other.push_back(captured.milliseconds());
    }
    const double slow = median(one), fast = median(other);
    table.row({with_commas(tokens), fmt::format("{:.3f}", slow), fmt::format("{:.3f}", fast),
               fmt::format("{:.3f}", slow / fast), with_unit(1e3 * static_cast<double>(tokens) / fast)});
  }
  fmt::print("{}, golf (9 x 512, T = 1024), bf16, Adam\n{}", card->facts().name, table.text());
}

}  // namespace
}  // namespace thimble

int main() {
  try {
    thimble::run();
  } catch (const thimble::Error& error) {
    fmt::print(stderr, "{}\n", thimble::describe(error));
    return 1;
  }
}
