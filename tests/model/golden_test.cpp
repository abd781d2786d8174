// Compares the model with PyTorch's original: logits, loss and every gradient.
#include "model/golden_model.h"

namespace thimble {
namespace {

class Golf : public testing::TestWithParam<const char*> {};

TEST_P(Golf, LossLogitsAndGradients) {
  expect_golden(open_golf(GetParam()), Context(), DType::f32, kF32Bounds);
}

TEST_P(Golf, LossLogitsAndGradientsInBf16) {
  expect_golden(open_golf(GetParam()), Context(), DType::bf16, kBf16Bounds);
}

INSTANTIATE_TEST_SUITE_P(Golden, Golf,
                         testing::Values("golf_baseline_grad.safetensors", "golf_plus_grad.safetensors"),
                         [](const auto& info) {
                           const std::string_view name = info.param;
                           return std::string(name.starts_with("golf_plus") ? "plus" : "baseline");
                         });

}  // namespace
}  // namespace thimble
