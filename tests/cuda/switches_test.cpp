// Every switch of the golf family on a GPU: loss and gradients match the CPU, and the layer loop
// can start between captured steps.
#include "model/switches.h"

#include <cmath>

#include "cuda/device.h"
#include "optim/device_step.h"

namespace thimble {
namespace {

struct Gradient {
  double loss = 0;
  std::vector<float> values;
};

Gradient gradient_of(const ModelConfig& config, const Context& context, DType dtype) {
  Model model = random_model(config, context, dtype);
  for (float& weight : model.weights()) weight *= 0.25f;
  model.weights_changed();
  Gradient gradient{0, std::vector<float>(model.weights().size())};
  gradient.loss = model.add_gradients(switch_rows(config), gradient.values, {});
  return gradient;
}

double relative_difference(const Gradient& a, const Gradient& b) {
  double difference = 0, length = 0;
  for (std::size_t i = 0; i < a.values.size(); ++i) {
    difference += std::pow(double{a.values[i]} - double{b.values[i]}, 2);
    length += std::pow(double{b.values[i]}, 2);
  }
  return std::sqrt(difference / length);
}

class GolfSwitchOnCuda : public testing::TestWithParam<Switch> {};

TEST_P(GolfSwitchOnCuda, LossAndGradientsMatchTheCpu) {
  const auto gpu = find_gpu();
  if (!gpu.runtime) GTEST_SKIP() << gpu.reason;
  const ModelConfig config = GetParam().config();
  const Gradient expected = gradient_of(config, Context(), DType::f32);
  const Context context(gpu.runtime);
  const Gradient wide = gradient_of(config, context, DType::f32),
                 narrow = gradient_of(config, context, DType::bf16);
  EXPECT_NEAR(wide.loss / expected.loss, 1, 1e-5);
  EXPECT_LT(relative_difference(wide, expected), 1e-4);
  EXPECT_NEAR(narrow.loss / expected.loss, 1, 0.01);
  EXPECT_LT(relative_difference(narrow, expected),
            0.15);  // as the cosine of 0.99 in bf16_test.cpp
}

INSTANTIATE_TEST_SUITE_P(Model, GolfSwitchOnCuda, testing::ValuesIn(golf_switches()),
                         [](const auto& info) { return std::string(info.param.name); });

// A captured step belongs to one program; the loop needs another.
TEST(LoopOnCuda, StartsBetweenCapturedSteps) {
  const auto gpu = find_gpu();
  if (!gpu.runtime) GTEST_SKIP() << gpu.reason;
  ConfigBuilder settings;
  settings.preset("golf");
  for (const char* setting :
       {"vocab_size=40", "context=24", "layers=4", "dim=32", "heads=4", "kv_heads=2", "batch_tokens=96",
        "span_tokens=0", "loop_first=1", "loop_last=2", "loop_count=2"})
    settings.set(setting);
  const Config config = settings.resolve();
  const auto losses = [&](bool capture) {
    const Context context(gpu.runtime);
    Model model = random_model(config.model, context);
    Optimizer optimizer(model.params(), config.optimizer, context);
    DeviceStep step(context, cuda_plugin().step, model, optimizer, config.train, capture);
    const std::vector<Rows> batch = {switch_rows(config.model)};
    const std::vector<std::uint64_t> seeds = {1};
    std::vector<double> all;
    for (int i = 0; i < 12; ++i) {
      model.set_loop(i >= 6);
      step.queue(
          {.step = i, .multiplier = 0.1, .options = {}, .micro_batches = batch, .dropout_seeds = seeds});
      all.push_back(step.oldest().loss);
    }
    return all;
  };
  const std::vector<double> captured = losses(true);
  EXPECT_EQ(captured, losses(false));
  EXPECT_GT(std::abs(captured[6] - captured[5]), 1e-3) << "the loop must change the loss";
}

}  // namespace
}  // namespace thimble
