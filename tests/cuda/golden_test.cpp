// The golf models on a GPU, compared with golden results from PyTorch.
#include "cuda/device.h"
#include "model/golden_model.h"

namespace thimble {
namespace {

class GolfOnCuda : public testing::TestWithParam<const char*> {};

TEST_P(GolfOnCuda, LossLogitsAndGradients) {
  const auto gpu = find_gpu();
  if (!gpu.runtime) GTEST_SKIP() << gpu.reason;
  expect_golden(open_golf(GetParam()), Context(gpu.runtime), DType::f32, kF32Bounds);
}

TEST_P(GolfOnCuda, LossLogitsAndGradientsInBf16) {
  const auto gpu = find_gpu();
  if (!gpu.runtime) GTEST_SKIP() << gpu.reason;
  expect_golden(open_golf(GetParam()), Context(gpu.runtime), DType::bf16, kBf16Bounds);
}

INSTANTIATE_TEST_SUITE_P(Golden, GolfOnCuda,
                         testing::Values("golf_baseline_grad.safetensors", "golf_plus_grad.safetensors"),
                         [](const auto& info) {
                           const std::string_view name = info.param;
                           return std::string(name.starts_with("golf_plus") ? "plus" : "baseline");
                         });

}  // namespace
}  // namespace thimble
