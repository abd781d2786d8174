// Every switch of the golf family and of Transformers' families on a GPU, and a model of every such
// family: loss, gradients and decoded tokens match the CPU. The layer loop can start between
// captured steps.
#include "model/switches.h"

#include <cmath>
#include <optional>

#include "base/files.h"
#include "cuda/device.h"
#include "formats/architectures.h"
#include "optim/device_step.h"
#include "support/golden.h"

namespace thimble {
namespace {

struct Gradient {
  double loss = 0;
  std::vector<float> values;
};

Model calm_model(const ModelConfig& config, const Context& context, DType dtype) {
  Model model = random_model(config, context, dtype);
  for (float& weight : model.weights()) weight *= 0.25f;
  model.weights_changed();
  return model;
}

Gradient gradient_of(const ModelConfig& config, const Rows& rows, const Context& context, DType dtype) {
  Model model = calm_model(config, context, dtype);
  Gradient gradient{0, std::vector<float>(model.weights().size())};
  gradient.loss = model.add_gradients(rows, gradient.values, {});
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

void expect_gradients_of_the_cpu(const ModelConfig& config, const Rows& rows, const Context& context) {
  const Gradient expected = gradient_of(config, rows, Context(), DType::f32);
  const Gradient wide = gradient_of(config, rows, context, DType::f32),
                 narrow = gradient_of(config, rows, context, DType::bf16);
  EXPECT_NEAR(wide.loss / expected.loss, 1, 1e-5);
  EXPECT_LT(relative_difference(wide, expected), 1e-4);
  EXPECT_NEAR(narrow.loss / expected.loss, 1, 0.01);
  EXPECT_LT(relative_difference(narrow, expected),
            0.15);  // as the cosine of 0.99 in bf16_test.cpp
}

class SwitchOnCuda : public testing::TestWithParam<Switch> {};

TEST_P(SwitchOnCuda, LossAndGradientsMatchTheCpu) {
  const auto gpu = find_gpu();
  if (!gpu.runtime) GTEST_SKIP() << gpu.reason;
  const ModelConfig config = GetParam().config();
  expect_gradients_of_the_cpu(config, switch_rows(config), Context(gpu.runtime));
}

INSTANTIATE_TEST_SUITE_P(Golf, SwitchOnCuda, testing::ValuesIn(golf_switches()),
                         [](const auto& info) { return std::string(info.param.name); });
INSTANTIATE_TEST_SUITE_P(Families, SwitchOnCuda, testing::ValuesIn(family_switches()),
                         [](const auto& info) { return std::string(info.param.name); });

// Frozen weights that were uploaded once, and random adapters.
struct Adapted {
  Adapted(const ModelConfig& config, const Context& context, DType dtype) {
    const Context host;
    const Model floats = calm_model(config, host, DType::f32);
    const auto stored =
        std::make_shared<const StoredWeights>(stored_exactly(floats.params(), floats.weights()));
    const auto convert = context.device() == Device::cpu ? stored_for_rows : stored_for_gpu;
    const LoraConfig lora{.rank = 4, .alpha = 6};
    model.emplace(config, context, dtype, convert(floats.params(), stored, dtype),
                  std::make_shared<const AdapterTable>(config, lora));
    std::mt19937 random(31);
    std::normal_distribution<float> normal(0, 0.2f);
    for (float& value : model->weights()) value = normal(random);
    model->weights_changed();
  }

  Gradient gradient(const Rows& rows) {
    Gradient gradient{0, std::vector<float>(model->weights().size())};
    gradient.loss = model->add_gradients(rows, gradient.values, {});
    return gradient;
  }

  std::optional<Model> model;
};

TEST(AdaptersOnCuda, LossGradientsAndLogitsMatchTheCpu) {
  const auto gpu = find_gpu();
  if (!gpu.runtime) GTEST_SKIP() << gpu.reason;
  const Context host, device(gpu.runtime);
  for (const char* preset : {"llama", "golf"}) {
    SCOPED_TRACE(preset);
    const ModelConfig config = small_config(preset);
    const Rows rows = switch_rows(config);
    Adapted expected(config, host, DType::f32), wide(config, device, DType::f32),
        narrow(config, device, DType::bf16);
    const Gradient of_cpu = expected.gradient(rows), of_wide = wide.gradient(rows),
                   of_narrow = narrow.gradient(rows);
    EXPECT_NEAR(of_wide.loss / of_cpu.loss, 1, 1e-5);
    EXPECT_LT(relative_difference(of_wide, of_cpu), 1e-4);
    EXPECT_NEAR(of_narrow.loss / of_cpu.loss, 1, 0.01);
    EXPECT_LT(relative_difference(of_narrow, of_cpu), 0.15);
    const auto logits = expected.model->score(rows, true).logits,
               found = wide.model->score(rows, true).logits;
    for (std::size_t i = 0; i < logits.size(); ++i) ASSERT_NEAR(found[i], logits[i], 1e-4) << i;
  }
}

// The models of tests/golden/architectures, which are small, and with the head size that the family
// has: the tensor cores have kernels for some sizes only.
struct FamilyOnDevice {
  const char* name;
  std::int64_t head_dim;
};

class FamilyOnCuda : public testing::TestWithParam<FamilyOnDevice> {
 protected:
  void SetUp() override {
    const auto gpu = find_gpu();
    if (!gpu.runtime) GTEST_SKIP() << gpu.reason;
    gpu_ = std::make_unique<Context>(gpu.runtime);
  }

  // The small model, then one with the family's head size.
  static std::vector<ModelConfig> configs() {
    const auto path = golden_path(std::string("architectures/") + GetParam().name) / "config.json";
    ModelConfig small = parse_hugging_face_config(read_file(path, 1 << 20), "config.json").model,
                large = small;
    const double rotated = static_cast<double>(small.rope_dims) / static_cast<double>(small.head_dim);
    large.head_dim = GetParam().head_dim;
    large.rope_dims = static_cast<std::int64_t>(rotated * static_cast<double>(large.head_dim));
    return {small, large};
  }

  std::unique_ptr<Context> gpu_;
};

// Two rows longer than the window; a document starts within the second one.
TEST_P(FamilyOnCuda, LossAndGradientsMatchTheCpu) {
  for (const ModelConfig& config : configs()) {
    SCOPED_TRACE(fmt::format("heads of {}", config.head_dim));
    std::mt19937 random(5);
    const std::int64_t T = std::min<std::int64_t>(config.context, 100);
    const auto input = random_tokens(random, config, 2 * T), target = random_tokens(random, config, 2 * T);
    std::vector<std::uint8_t> starts(input.size());
    starts[static_cast<std::size_t>(T + T / 3)] = 1;
    expect_gradients_of_the_cpu(config, grid_rows(config, T, input, target, starts), *gpu_);
  }
}

// Logits of a prompt, and of 40 tokens decoded one by one.
std::vector<std::vector<float>> decoded_logits(const ModelConfig& config, const Context& context,
                                               DType dtype) {
  Model model = calm_model(config, context, dtype);
  KvCache cache = model.make_cache(1);
  std::mt19937 random(6);
  constexpr std::int64_t kPrompt = 70;
  const std::int64_t end = std::min<std::int64_t>(config.context, 110), prompt = std::min(kPrompt, end - 20);
  const std::vector<std::int32_t> tokens = random_tokens(random, config, end);
  std::vector<std::vector<float>> all;
  std::int64_t read = 0;
  while (read < end) {
    std::vector<DecodeRow> rows;
    for (const std::int64_t until = read == 0 ? prompt : read + 1; read < until; ++read)
      rows.push_back({.token = tokens[static_cast<std::size_t>(read)],
                      .previous = read < 1 ? -1 : tokens[static_cast<std::size_t>(read - 1)],
                      .before_previous = read < 2 ? -1 : tokens[static_cast<std::size_t>(read - 2)],
                      .position = static_cast<std::int32_t>(read),
                      .wants_logits = read + 1 == until});
    const Tensor logits = model.decode(decode_rows(model.config(), 1, rows), cache);
    all.emplace_back(logits.row<float>(0), logits.row<float>(0) + logits.cols);
  }
  return all;
}

TEST_P(FamilyOnCuda, DecodedLogitsMatchTheCpu) {
  for (const ModelConfig& config : configs()) {
    SCOPED_TRACE(fmt::format("heads of {}", config.head_dim));
    const auto expected = decoded_logits(config, Context(), DType::f32);
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const auto found = decoded_logits(config, *gpu_, dtype);
      for (std::size_t t = 0; t < expected.size(); ++t) {
        float largest = 1, difference = 0;
        for (std::size_t i = 0; i < expected[t].size(); ++i) {
          largest = std::max(largest, std::abs(expected[t][i]));
          difference = std::max(difference, std::abs(expected[t][i] - found[t][i]));
        }
        // As in decode_test.cpp.
        ASSERT_LE(difference / largest, dtype == DType::f32 ? 5e-5 : 0.04)
            << dtype_name(dtype) << ", row " << t;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, FamilyOnCuda,
                         testing::Values(FamilyOnDevice{"llama3", 64}, FamilyOnDevice{"smollm2", 64},
                                         FamilyOnDevice{"mistral", 128}, FamilyOnDevice{"qwen2_window", 64},
                                         FamilyOnDevice{"qwen3", 128}, FamilyOnDevice{"smollm3", 128},
                                         FamilyOnDevice{"gemma2", 256}, FamilyOnDevice{"gemma3", 256},
                                         FamilyOnDevice{"phi3", 96}, FamilyOnDevice{"gpt2", 64}),
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
