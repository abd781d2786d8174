// NCCL with one rank on one GPU: its sums and gathers change nothing, and run at the same point of
// the same graph.
#include <cstdlib>

#include "base/error.h"
#include "base/rng.h"
#include "config/builder.h"
#include "cuda/device.h"
#include "dist/plugins.h"
#include "optim/device_step.h"

namespace thimble::nccl_test {
namespace {

Config small_golf() {
  ConfigBuilder settings;
  settings.preset("golf");
  for (const char* setting : {"vocab_size=97", "layers=3", "dim=64", "heads=4", "kv_heads=2", "context=32",
                              "clip=1", "batch_tokens=256", "muon_dtype=f32"})
    settings.set(setting);
  return settings.resolve();
}

struct Trained {
  std::vector<double> losses;
  std::vector<float> weights;
  bool captured = false;
};

Trained train(const std::shared_ptr<DeviceRuntime>& gpu, DeviceCommunicator* gpus) {
  const Config config = small_golf();
  const Context context(gpu);
  Model model(config.model, context);
  initialize(model.params(), 1, model.weights());
  model.weights_changed();
  Optimizer optimizer(model.params(), config.optimizer, context);
  DeviceStep step(context, cuda_plugin().step, model, optimizer, config.train, true, gpus);
  Trained trained;
  constexpr std::array<std::uint64_t, 2> kSeeds = {1, 2};
  for (int i = 0; i < 12; ++i) {
    std::vector<Rows> batch;
    Rng random(7, 0, static_cast<std::uint64_t>(i));
    for (int m = 0; m < 2; ++m) {
      std::vector<std::int32_t> tokens(static_cast<std::size_t>(4 * config.model.context));
      for (std::int32_t& token : tokens) token = static_cast<std::int32_t>(random.below(97));
      batch.push_back(grid_rows(config.model, config.model.context, tokens, tokens));
    }
    step.queue({.step = i, .multiplier = 1, .options = {}, .micro_batches = batch, .dropout_seeds = kSeeds});
    trained.losses.push_back(step.oldest().loss);
  }
  step.gather_states();
  trained.captured = step.captured();
  model.fetch_weights();
  trained.weights.assign(model.weights().begin(), model.weights().end());
  return trained;
}

TEST(Nccl, OneRankOnOneGpuHasTheSameBitsAsWithoutNccl) {
  const DeviceChoice gpu = find_gpu();
  if (!gpu.runtime) GTEST_SKIP() << gpu.reason;
  if (const PluginState state = nccl_state(); !state.available) GTEST_SKIP() << state.text;
  const std::shared_ptr<Communicator> ranks = single_rank();
  EXPECT_EQ(join_gpus(*ranks, gpu.runtime), nullptr)
      << "a single rank must not use NCCL unless THIMBLE_NCCL is set";
  ASSERT_EQ(setenv("THIMBLE_NCCL", "1", 1), 0);
  const std::shared_ptr<DeviceCommunicator> gpus = join_gpus(*ranks, gpu.runtime);
  unsetenv("THIMBLE_NCCL");
  ASSERT_NE(gpus, nullptr);
  const Trained plain = train(gpu.runtime, nullptr), summed = train(gpu.runtime, gpus.get());
  gpus->check_errors();
  EXPECT_TRUE(summed.captured);
  EXPECT_EQ(plain.losses, summed.losses);
  EXPECT_EQ(plain.weights, summed.weights);
}

TEST(Nccl, TheCpuHasNoDeviceCommunicator) {
  const std::shared_ptr<Communicator> ranks = single_rank();
  EXPECT_EQ(join_gpus(*ranks, cpu_runtime()), nullptr);
}

}  // namespace
}  // namespace thimble::nccl_test
