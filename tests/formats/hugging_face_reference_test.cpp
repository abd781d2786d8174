// Folders written by Transformers, compared with Transformers' logits, loss, gradients and greedy
// text.
#include <algorithm>
#include <cmath>

#include "formats/model_file.h"
#include "formats/safetensors.h"
#include "formats/trace.h"
#include "support/golden.h"

namespace thimble {
namespace {

namespace fs = std::filesystem;

struct Fixture {
  fs::path folder;
  SafetensorsFile reference;
  Context context;
  Model model;

  explicit Fixture(const fs::path& path)
      : folder(path),
        reference(SafetensorsFile::open(path / "reference.safetensors")),
        model(make_model(open_model(path), context)) {}

  std::vector<float> floats(std::string_view name) const {
    std::vector<float> values(static_cast<std::size_t>(reference.at(name).count()));
    reference.read_f32(name, values);
    return values;
  }
};

struct Agreement {
  double cosine, relative;
};

Agreement compare(std::span<const float> ours, std::span<const float> theirs) {
  double dot = 0, a = 0, b = 0, apart = 0;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    const double x = ours[i], y = theirs[i];
    dot += x * y, a += x * x, b += y * y, apart += (x - y) * (x - y);
  }
  return {dot / std::sqrt(a * b), std::sqrt(apart / b)};
}

class TransformersFolder : public testing::TestWithParam<const char*> {
 protected:
  fs::path folder() const { return golden_path(std::string("hf/") + GetParam()); }
};

TEST_P(TransformersFolder, LogitsLossAndGradients) {
  Fixture fixture(folder());
  Model& model = fixture.model;
  const TraceTokens tokens = read_trace_tokens(fixture.reference);
  const Rows rows = grid_rows(model.config(), tokens.row_length(), tokens.input, tokens.target);
  std::vector<float> gradients(model.weights().size());
  EXPECT_NEAR(model.add_gradients(rows, gradients, {}) / fixture.floats("loss")[0], 1, 1e-5);
  const auto ours = model.score(rows, true).logits, theirs = fixture.floats("logits");
  ASSERT_EQ(ours.size(), theirs.size());
  for (std::size_t i = 0; i < ours.size(); ++i) ASSERT_NEAR(ours[i], theirs[i], 2e-4);
  for (const Param& param : model.params().all()) {
    const auto expected = fixture.floats("grad." + param.name);
    const auto [cosine, relative] = compare(
        std::span(gradients).subspan(static_cast<std::size_t>(param.offset), expected.size()), expected);
    EXPECT_GE(cosine, 0.999999) << param.name;
    EXPECT_LE(relative, 1e-4) << param.name;
  }
}

std::int32_t likeliest(std::span<const float> logits) {
  return static_cast<std::int32_t>(std::ranges::max_element(logits) - logits.begin());
}

constexpr std::size_t kPrompt = 8;

std::vector<std::int32_t> greedy_through_the_cache(Model& model, std::vector<std::int32_t> tokens,
                                                   std::size_t length) {
  KvCache cache(model.config(), 1);
  std::size_t read = 0;
  while (tokens.size() < length) {
    std::vector<DecodeRow> rows;
    for (; read < tokens.size(); ++read)
      rows.push_back({.token = tokens[read],
                      .previous = read < 1 ? -1 : tokens[read - 1],
                      .before_previous = read < 2 ? -1 : tokens[read - 2],
                      .position = static_cast<std::int32_t>(read),
                      .wants_logits = read + 1 == tokens.size()});
    const Tensor logits = model.decode(decode_rows(model.config(), 1, rows), cache);
    tokens.push_back(likeliest({logits.row<float>(0), static_cast<std::size_t>(logits.cols)}));
  }
  return tokens;
}

std::vector<std::int32_t> greedy_by_scoring(Model& model, std::vector<std::int32_t> tokens,
                                            std::size_t length) {
  while (tokens.size() < length) {
    const auto T = static_cast<std::int64_t>(tokens.size());
    const auto logits = model.score(grid_rows(model.config(), T, tokens), true).logits;
    const auto V = static_cast<std::size_t>(model.config().vocab_size);
    tokens.push_back(likeliest(std::span(logits).last(V)));
  }
  return tokens;
}

TEST_P(TransformersFolder, GreedyContinuation) {
  Fixture fixture(folder());
  std::vector<std::int64_t> wide(32);
  fixture.reference.read_i64("greedy", wide);
  const std::vector<std::int32_t> expected(wide.begin(), wide.end());
  const std::vector<std::int32_t> prompt(expected.begin(), expected.begin() + kPrompt);
  EXPECT_EQ(greedy_through_the_cache(fixture.model, prompt, expected.size()), expected);
  EXPECT_EQ(greedy_by_scoring(fixture.model, prompt, expected.size()), expected);
}

INSTANTIATE_TEST_SUITE_P(HuggingFace, TransformersFolder, testing::Values("llama_tied", "qwen2"));

}  // namespace
}  // namespace thimble
