// Training in f16 on a GPU: losses match f32, steps with overflows are skipped, and a resumed run
// continues with its loss scale.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/rng.h"
#include "config/builder.h"
#include "cuda/device.h"
#include "optim/device_step.h"
#include "optim/states_of.h"

namespace thimble::f16_step_test {
namespace {

constexpr std::int64_t kRows = 4, kVocabulary = 97;
// A small initial scale: each of 128 targets has a large weight, and gradients are large.
constexpr LossScale kBegin = {1024, 0};

// Head size 32 uses attention on the tensor cores.
Config small_golf(const char* muon = "muon_steps=5", const char* dtype = "dtype=f16") {
  ConfigBuilder settings;
  settings.preset("golf");
  for (const char* setting :
       {"vocab_size=97", "layers=3", "dim=64", "heads=2", "kv_heads=1", "context=32", "lr=0.003",
        "matrix_lr=0.01", "embed_lr=0.003", "scalar_lr=0.003", "clip=1", "batch_tokens=128", muon, dtype})
    settings.set(setting);
  return settings.resolve();
}

// Token sequences that follow a rule, so that the model can learn something.
Rows batch_of(const Config& config, std::int64_t step) {
  Rng random(7, 0, static_cast<std::uint64_t>(step));
  std::vector<std::int32_t> input, target;
  for (std::int64_t r = 0; r < kRows; ++r) {
    auto token = static_cast<std::int32_t>(random.below(kVocabulary));
    for (std::int64_t t = 0; t < config.model.context; ++t) {
      input.push_back(token);
      token = (token * 5 + 3) % static_cast<std::int32_t>(kVocabulary);
      target.push_back(token);
    }
  }
  return grid_rows(config.model, config.model.context, input, target);
}

struct TrainingRun {
  Config config;
  Context context;
  Model model;
  Optimizer optimizer;
  std::vector<StepOutcome> outcomes;

  TrainingRun(const std::shared_ptr<DeviceRuntime>& gpu, const Config& with)
      : config(with),
        context(gpu),
        model(config.model, context, config.train.dtype == ComputeDType::f16 ? DType::f16 : DType::f32),
        optimizer(model.params(), config.optimizer, context) {
    initialize(model.params(), 1, model.weights());
    model.weights_changed();
    optimizer.loss_scale() = kBegin;
  }

  // On return, weights, states and loss scale are in host memory.
  void steps(std::int64_t first, std::int64_t last, std::int64_t poisoned = -1, bool capture = true) {
    DeviceStep step(context, cuda_plugin().step, model, optimizer, config.train, capture);
    const std::array<std::uint64_t, 1> seeds = {1};
    for (std::int64_t i = first; i < last; ++i) {
      Rows rows = batch_of(config, i);
      if (i == poisoned) rows.weight[3] = std::numeric_limits<float>::infinity();
      step.queue({.step = i,
                  .multiplier = 1,
                  .options = {},
                  .micro_batches = std::span(&rows, 1),
                  .dropout_seeds = seeds});
      while (const auto outcome = step.finished()) outcomes.push_back(*outcome);
    }
    while (step.steps_in_flight() > 0) outcomes.push_back(step.oldest());
    model.fetch_weights();
    optimizer.fetch_states();
    step.fetch_loss_scale();
  }

  // Copies the state of another run, as resuming from a checkpoint does.
  void copy_state_of(TrainingRun& other) {
    std::ranges::copy(other.model.weights(), model.weights().begin());
    for_each_state(
        optimizer, model.params(), [&](const Param& param, std::string_view name, std::span<float> values) {
          const auto index = static_cast<std::size_t>(&param - model.params().all().data());
          std::ranges::copy(other.optimizer.state(name, other.model.params().all()[index]), values.begin());
        });
    model.weights_changed();
    optimizer.send_states();
    optimizer.loss_scale() = other.optimizer.loss_scale();
  }

  std::vector<float> weights() const { return {model.weights().begin(), model.weights().end()}; }
  std::vector<float> states() { return states_of(optimizer, model.params()); }
  std::int64_t skipped() const {
    return std::ranges::count_if(outcomes, [](const StepOutcome& outcome) { return !outcome.updated; });
  }
};

TEST(F16Steps, LossesMatchF32) {
  const auto gpu = find_gpu();
  if (!gpu.runtime) GTEST_SKIP() << gpu.reason;
  for (const char* muon : {"muon_steps=0", "muon_steps=5"}) {
    TrainingRun expected(gpu.runtime, small_golf(muon, "dtype=f32")), found(gpu.runtime, small_golf(muon));
    expected.steps(0, 30);
    found.steps(0, 30);
    ASSERT_EQ(found.outcomes.size(), 30u);
    EXPECT_EQ(found.skipped(), 0);
    for (std::size_t i = 0; i < 30; ++i)
      EXPECT_NEAR(found.outcomes[i].loss / expected.outcomes[i].loss, 1, 0.03) << i;
    EXPECT_NEAR(found.outcomes[0].norm / expected.outcomes[0].norm, 1, 0.02)
        << "the norm must not include the loss scale";
    EXPECT_LT(expected.outcomes.back().loss, 0.9 * expected.outcomes.front().loss);
    EXPECT_EQ(found.optimizer.loss_scale(), (LossScale{kBegin.scale, 30}));
  }
}

TEST(F16Steps, CapturedStepsHaveTheSameBits) {
  const auto gpu = find_gpu();
  if (!gpu.runtime) GTEST_SKIP() << gpu.reason;
  TrainingRun captured(gpu.runtime, small_golf()), queued(gpu.runtime, small_golf());
  captured.steps(0, 8);
  queued.steps(0, 8, -1, false);
  EXPECT_EQ(captured.weights(), queued.weights());
  EXPECT_EQ(captured.optimizer.loss_scale(), queued.optimizer.loss_scale());
}

TEST(F16Steps, AnOverflowIsSkippedAndTheScaleHalves) {
  const auto gpu = find_gpu();
  if (!gpu.runtime) GTEST_SKIP() << gpu.reason;
  TrainingRun before(gpu.runtime, small_golf()), poisoned(gpu.runtime, small_golf());
  before.steps(0, 5);
  poisoned.steps(0, 6, 5);
  EXPECT_FALSE(poisoned.outcomes.back().updated);
  EXPECT_EQ(poisoned.outcomes.back().loss_scale, kBegin.scale / 2);
  EXPECT_EQ(before.weights(), poisoned.weights());
  EXPECT_EQ(before.states(), poisoned.states());
  poisoned.steps(6, 9);
  EXPECT_EQ(poisoned.skipped(), 1);
  EXPECT_EQ(poisoned.optimizer.loss_scale(), (LossScale{kBegin.scale / 2, 3}));
}

// 2^30 / 128 targets is far beyond f16: the gradients themselves overflow; the inputs are valid.
TEST(F16Steps, AScaleThatIsTooLargeIsHalvedUntilItFits) {
  const auto gpu = find_gpu();
  if (!gpu.runtime) GTEST_SKIP() << gpu.reason;
  TrainingRun run(gpu.runtime, small_golf());
  run.optimizer.loss_scale() = {0x1p30f, 0};
  run.steps(0, 24);
  EXPECT_GE(run.skipped(), 7);  // 2^23 / 128 = 65536
  EXPECT_TRUE(run.outcomes.back().updated);
  EXPECT_EQ(run.optimizer.loss_scale().scale, std::ldexp(0x1p30f, -static_cast<int>(run.skipped())));
  for (const float weight : run.weights()) ASSERT_TRUE(std::isfinite(weight));
  for (const float moment : run.states()) ASSERT_TRUE(std::isfinite(moment));
}

TEST(F16Steps, AResumedRunHasTheSameBits) {
  const auto gpu = find_gpu();
  if (!gpu.runtime) GTEST_SKIP() << gpu.reason;
  for (const std::int64_t poisoned : {-1, 3}) {
    TrainingRun uninterrupted(gpu.runtime, small_golf()), first(gpu.runtime, small_golf()),
        second(gpu.runtime, small_golf());
    uninterrupted.optimizer.loss_scale().good_steps = first.optimizer.loss_scale().good_steps =
        kGrowthSteps - 7;
    uninterrupted.steps(0, 12, poisoned);
    first.steps(0, 5, poisoned);
    second.copy_state_of(first);
    second.steps(5, 12, poisoned);
    EXPECT_EQ(uninterrupted.weights(), second.weights());
    EXPECT_EQ(uninterrupted.optimizer.loss_scale(), second.optimizer.loss_scale());
    EXPECT_EQ(second.optimizer.loss_scale(),
              poisoned < 0 ? (LossScale{2 * kBegin.scale, 5}) : (LossScale{kBegin.scale / 2, 8}));
    EXPECT_EQ(uninterrupted.states(), second.states());
  }
}

}  // namespace
}  // namespace thimble::f16_step_test
