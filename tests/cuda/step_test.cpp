// Complete optimizer steps on a GPU: the same losses as on the CPU, the same bits with and without
// capture, and no update by a non-finite gradient.
#include "optim/device_step.h"

#include <cmath>
#include <limits>

#include "base/rng.h"
#include "config/builder.h"
#include "cuda/device.h"

namespace thimble::step_test {
namespace {

constexpr std::int64_t kRows = 4, kMicroBatches = 2;

Config small_golf(const std::vector<std::string>& more = {"muon_steps=0"}) {
  ConfigBuilder settings;
  settings.preset("golf");
  for (const char* setting :
       {"vocab_size=97", "layers=3", "dim=64", "heads=4", "kv_heads=2", "context=32", "lr=0.003",
        "matrix_lr=0.003", "embed_lr=0.003", "scalar_lr=0.003", "clip=1", "batch_tokens=256"})
    settings.set(setting);
  for (const std::string& setting : more) settings.set(setting);
  return settings.resolve();
}

// Muon with all options, in f32.
Config small_muon() {
  return small_golf({"muon_dtype=f32", "muon_weight_decay=0.04", "matrix_lr=0.02", "muon_momentum_start=0.85",
                     "muon_momentum_steps=10"});
}

// Two micro-batches of tokens that follow a rule, so that the model can learn something.
std::vector<Rows> batch_of(const Config& config, std::int64_t step) {
  std::vector<Rows> batch;
  Rng random(7, 0, static_cast<std::uint64_t>(step));
  for (std::int64_t m = 0; m < kMicroBatches; ++m) {
    std::vector<std::int32_t> input, target;
    for (std::int64_t r = 0; r < kRows; ++r) {
      auto token = static_cast<std::int32_t>(random.below(97));
      for (std::int64_t t = 0; t < config.model.context; ++t) {
        input.push_back(token);
        token = (token * 5 + 3) % 97;
        target.push_back(token);
      }
    }
    Rows rows = grid_rows(config.model, config.model.context, input, target);
    for (float& weight : rows.weight) weight /= kMicroBatches;
    batch.push_back(std::move(rows));
  }
  return batch;
}

constexpr std::array<std::uint64_t, kMicroBatches> kSeeds = {1, 2};

std::vector<double> losses_on_cpu(const Config& config, int steps) {
  const Context context;
  Model model(config.model, context);
  initialize(model.params(), 1, model.weights());
  Optimizer optimizer(model.params(), config.optimizer, context);
  std::vector<float> gradients(model.weights().size());
  std::vector<double> losses;
  for (int step = 0; step < steps; ++step) {
    std::ranges::fill(gradients, 0.0f);
    double loss = 0;
    for (const Rows& rows : batch_of(config, step)) loss += model.add_gradients(rows, gradients, {});
    optimizer.update(context, step, 1, model.weights(), gradients);
    model.weights_changed();
    losses.push_back(loss);
  }
  return losses;
}

struct Trained {
  std::vector<double> losses;
  std::vector<float> weights;
  bool captured = false;
  StepOutcome last;
};

Trained train_on_gpu(const std::shared_ptr<DeviceRuntime>& gpu, const Config& config, DType dtype, int steps,
                     bool capture, int poisoned = -1) {
  const Context context(gpu);
  Model model(config.model, context, dtype);
  initialize(model.params(), 1, model.weights());
  model.weights_changed();
  Optimizer optimizer(model.params(), config.optimizer, context);
  DeviceStep step(context, cuda_plugin().step, model, optimizer, config.train, capture);
  Trained trained;
  const auto take = [&](const StepOutcome& outcome) {
    EXPECT_EQ(outcome.step, static_cast<std::int64_t>(trained.losses.size()));
    EXPECT_EQ(outcome.updated, outcome.step != poisoned);
    trained.losses.push_back(outcome.loss);
    trained.last = outcome;
  };
  for (int i = 0; i < steps; ++i) {
    std::vector<Rows> batch = batch_of(config, i);
    if (i == poisoned) batch[1].weight[3] = std::numeric_limits<float>::quiet_NaN();
    step.queue({.step = i, .multiplier = 1, .options = {}, .micro_batches = batch, .dropout_seeds = kSeeds});
    while (const auto outcome = step.finished()) take(*outcome);
  }
  while (step.steps_in_flight() > 0) take(step.oldest());
  trained.captured = step.captured();
  model.fetch_weights();
  trained.weights.assign(model.weights().begin(), model.weights().end());
  return trained;
}

TEST(DeviceStep, FiftyAdamStepsMatchTheLossesOfTheCpu) {
  const auto gpu = find_gpu();
  if (!gpu.runtime) GTEST_SKIP() << gpu.reason;
  const Config config = small_golf();
  const auto expected = losses_on_cpu(config, 50);
  const Trained trained = train_on_gpu(gpu.runtime, config, DType::f32, 50, true);
  ASSERT_EQ(trained.losses.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i)
    EXPECT_NEAR(trained.losses[i] / expected[i], 1, 1e-4) << i;
  // The model learned, so the comparison is meaningful.
  EXPECT_LT(expected.back(), 0.5 * expected.front());
}

TEST(DeviceStep, MuonStepsMatchTheLossesOfTheCpu) {
  const auto gpu = find_gpu();
  if (!gpu.runtime) GTEST_SKIP() << gpu.reason;
  const std::vector<std::string> others[] = {
      {}, {"muon_row_norm=true"}, {"muon_coefficients=polar"}, {"mlp_hidden=40"}};
  for (const auto& other : others) {
    std::vector<std::string> settings = {"muon_dtype=f32", "muon_weight_decay=0.04", "matrix_lr=0.02"};
    settings.insert(settings.end(), other.begin(), other.end());
    const Config config = small_golf(settings);
    const auto expected = losses_on_cpu(config, 30);
    const Trained trained = train_on_gpu(gpu.runtime, config, DType::f32, 30, true);
    for (std::size_t i = 0; i < expected.size(); ++i)
      EXPECT_NEAR(trained.losses[i] / expected[i], 1, 1e-3) << i;
    EXPECT_LT(expected.back(), 0.8 * expected.front());
  }
}

// In bf16, a program fuses some calls and plans memory accordingly.
TEST(DeviceStep, Bf16StepsMatchTheLossesOfTheCpu) {
  const auto gpu = find_gpu();
  if (!gpu.runtime) GTEST_SKIP() << gpu.reason;
  const Config config = small_golf();
  const auto expected = losses_on_cpu(config, 30);
  const Trained trained = train_on_gpu(gpu.runtime, config, DType::bf16, 30, true);
  ASSERT_EQ(trained.losses.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i)
    EXPECT_NEAR(trained.losses[i] / expected[i], 1, 0.05) << i;
}

TEST(DeviceStep, CapturedStepsHaveTheSameBits) {
  const auto gpu = find_gpu();
  if (!gpu.runtime) GTEST_SKIP() << gpu.reason;
  for (const Config& config : {small_golf(), small_golf({"muon_dtype=bf16"})})
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const Trained captured = train_on_gpu(gpu.runtime, config, dtype, 8, true);
      const Trained queued = train_on_gpu(gpu.runtime, config, dtype, 8, false);
      EXPECT_TRUE(captured.captured);
      EXPECT_FALSE(queued.captured);
      EXPECT_EQ(captured.losses, queued.losses);
      EXPECT_EQ(captured.weights, queued.weights);
    }
}

// When fake quantization starts during a run, the program of the previous kind of step is released.
TEST(DeviceStep, AnotherKindOfStepReplacesThePrevious) {
  const auto gpu = find_gpu();
  if (!gpu.runtime) GTEST_SKIP() << gpu.reason;
  const Config config = small_golf();
  const Context context(gpu.runtime);
  Model model(config.model, context, DType::bf16);
  initialize(model.params(), 1, model.weights());
  model.weights_changed();
  Optimizer optimizer(model.params(), config.optimizer, context);
  DeviceStep step(context, cuda_plugin().step, model, optimizer, config.train);
  for (const int bits : {0, 0, 8, 8, 0}) {
    const std::vector<Rows> batch = batch_of(config, 0);
    step.queue({.step = 0,
                .multiplier = 1,
                .options = {.qat_bits = bits},
                .micro_batches = batch,
                .dropout_seeds = kSeeds});
    EXPECT_TRUE(std::isfinite(step.oldest().loss));
    EXPECT_EQ(model.programs(), 1u);
  }
}

TEST(DeviceStep, ANonFiniteGradientChangesNothing) {
  const auto gpu = find_gpu();
  if (!gpu.runtime) GTEST_SKIP() << gpu.reason;
  for (const Config& config : {small_golf(), small_muon()}) {
    const Trained before = train_on_gpu(gpu.runtime, config, DType::f32, 5, true);
    const Trained poisoned = train_on_gpu(gpu.runtime, config, DType::f32, 6, true, 5);
    EXPECT_FALSE(std::isfinite(poisoned.last.norm));
    EXPECT_EQ(before.weights, poisoned.weights);
  }
}

}  // namespace
}  // namespace thimble::step_test
