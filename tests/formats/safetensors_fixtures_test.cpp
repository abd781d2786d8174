// Files written by PyTorch and Transformers.
#include <algorithm>
#include <cctype>
#include <cmath>

#include "base/json.h"
#include "formats/safetensors.h"
#include "support/golden.h"

namespace thimble {
namespace {

constexpr std::string_view kFiles[] = {
    "golf_baseline_grad.safetensors",  "golf_baseline_train.safetensors",
    "golf_plus_grad.safetensors",      "golf_plus_train.safetensors",
    "hf/llama_tied/model.safetensors", "hf/llama_tied/reference.safetensors",
    "hf/qwen2/model.safetensors",      "hf/qwen2/reference.safetensors",
};

class SafetensorsFixture : public testing::TestWithParam<std::string_view> {};

TEST_P(SafetensorsFixture, OpensAndContainsFiniteNumbers) {
  const SafetensorsFile file = SafetensorsFile::open(golden_path(GetParam()));
  EXPECT_GT(file.entries().size(), 20u);
  EXPECT_FALSE(file.metadata().empty());
  for (const auto& entry : file.entries()) {
    if (entry.dtype != "F32" && entry.dtype != "F16") continue;
    std::vector<float> values(static_cast<std::size_t>(entry.count()));
    file.read_f32(entry.name, values);
    for (const float value : values) ASSERT_TRUE(std::isfinite(value)) << entry.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, SafetensorsFixture, testing::ValuesIn(kFiles), [](const auto& info) {
  std::string name(info.param.substr(0, info.param.find('.')));
  std::replace_if(
      name.begin(), name.end(), [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); }, '_');
  return name;
});

TEST(SafetensorsFixture, GoldenShapesAndTokensMatchTheConfig) {
  const SafetensorsFile file = SafetensorsFile::open(golden_path("golf_baseline_grad.safetensors"));
  const Json config = parse_json(*file.find_metadata("config"), "config");
  const auto vocab_size = config.at("vocab_size").as_int(), dim = config.at("model_dim").as_int();
  EXPECT_EQ(file.at("param.tok_emb.weight").dims, (std::vector{vocab_size, dim}));
  const auto& input = file.at("input");
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(input.count()));
  file.read_i64("input", tokens);
  for (const auto token : tokens) EXPECT_TRUE(token >= 0 && token < vocab_size) << token;
  float loss = 0;
  file.read_f32("loss", {&loss, 1});
  EXPECT_GT(loss, 0.0f);
  EXPECT_LT(loss, 20.0f);
}

}  // namespace
}  // namespace thimble
