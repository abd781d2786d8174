// Every preset trains in bf16. All nodes that a switch adds have matching gradient dtypes (f32 for
// values with many readers), and the gradients are close to those in f32.
#include <algorithm>
#include <cmath>

#include "config/builder.h"
#include "model/model.h"
#include "model/random_model.h"

namespace thimble::bf16_test {
namespace {

struct Gradient {
  double loss = 0;
  std::vector<float> values;
};

Gradient gradient_of(const ModelConfig& config, DType dtype, const GradientOptions& options) {
  const Context context;
  Model model = random_model(config, context, dtype);
  for (float& weight : model.weights()) weight *= 0.25f;
  model.weights_changed();
  std::mt19937 random(3);
  const auto input = random_tokens(random, config, 4 * config.context),
             target = random_tokens(random, config, 4 * config.context);
  std::vector<std::uint8_t> starts(input.size());
  for (std::size_t n = 0; n < starts.size(); n += 7) starts[n] = 1;
  Gradient gradient{0, std::vector<float>(model.weights().size())};
  gradient.loss =
      model.add_gradients(grid_rows(config, config.context, input, target, starts), gradient.values, options);
  return gradient;
}

double cosine(const std::vector<float>& a, const std::vector<float>& b) {
  double product = 0, of_a = 0, of_b = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    product += static_cast<double>(a[i]) * static_cast<double>(b[i]);
    of_a += static_cast<double>(a[i]) * static_cast<double>(a[i]);
    of_b += static_cast<double>(b[i]) * static_cast<double>(b[i]);
  }
  return product / std::sqrt(of_a * of_b);
}

TEST(Bf16Model, GradientsOfEveryPresetAreCloseToF32) {
  for (const Preset& preset : all_presets())
    for (const GradientOptions options :
         {GradientOptions{}, GradientOptions{.recompute = true}, GradientOptions{.qat_bits = 6}}) {
      SCOPED_TRACE(
          fmt::format("{}, recompute {}, {} bits", preset.name, options.recompute, options.qat_bits));
      const ModelConfig config = small_config(std::string(preset.name));
      const Gradient wide = gradient_of(config, DType::f32, options),
                     narrow = gradient_of(config, DType::bf16, options);
      EXPECT_NEAR(narrow.loss, wide.loss, 0.01 * wide.loss);
      EXPECT_GE(cosine(narrow.values, wide.values), 0.99);
    }
}

TEST(DtypeFallback, IsReportedOnlyForAutomaticOnACpuWithoutBf16) {
  const CpuFeatures plain{};
  EXPECT_NE(dtype_fallback(ComputeDType::automatic, Device::cpu, plain).find("fell back to f32"),
            std::string::npos);
  EXPECT_EQ(dtype_fallback(ComputeDType::f32, Device::cpu, plain), "") << "f32 was requested";
  EXPECT_EQ(dtype_fallback(ComputeDType::automatic, Device::cuda, plain), "") << "a GPU has bf16";
}

}  // namespace
}  // namespace thimble::bf16_test
