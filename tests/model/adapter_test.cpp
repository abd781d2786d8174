#include "model/adapter.h"

#include <algorithm>
#include <cmath>

#include "model/random_model.h"
#include "support/message_of.h"

namespace thimble::adapter_test {
namespace {

constexpr std::uint32_t bits(std::initializer_list<LoraTarget> targets) {
  std::uint32_t set = 0;
  for (const LoraTarget target : targets) set |= 1u << static_cast<unsigned>(target);
  return set;
}

struct Case {
  const char* name;
  const char* preset;
  std::uint32_t targets;
  std::vector<std::string> settings = {};

  friend std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }
};

// A frozen random model, with random adapters.
struct AdaptedModel {
  explicit AdaptedModel(const Case& c, LoraConfig lora = {.rank = 3, .alpha = 2}, DType dtype = DType::f32)
      : config(small_config(c.preset, c.settings)), floats(random_model(config, context)) {
    lora.targets.bits = c.targets;
    table = std::make_shared<const AdapterTable>(config, lora);
    stored = std::make_shared<const StoredWeights>(stored_exactly(floats.params(), floats.weights()));
    adapted.emplace(config, context, dtype, stored_for_rows(floats.params(), stored, dtype), table);
    std::mt19937 random(31);
    std::normal_distribution<float> normal(0, 0.4f);
    for (const Param& param : table->params().all())
      for (float& value : param.in(adapted->weights())) value = normal(random);
    adapted->weights_changed();
    tokens = random_tokens(random, config, 2 * kLength);
    targets = random_tokens(random, config, 2 * kLength);
    rows = grid_rows(config, kLength, tokens, targets);
  }

  // The f32 model with the adapters added to its weights.
  Model& merged() {
    merge_adapters(floats.params(), *table, adapted->weights(), floats.weights());
    floats.weights_changed();
    return floats;
  }

  static constexpr std::int64_t kLength = 12;
  ModelConfig config;
  Context context;
  Model floats;
  std::shared_ptr<const AdapterTable> table;
  std::shared_ptr<const StoredWeights> stored;
  std::optional<Model> adapted;
  std::vector<std::int32_t> tokens, targets;
  Rows rows;
};

double largest_difference(std::span<const float> a, std::span<const float> b) {
  double largest = 0, size = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
    size = std::max(size, std::abs(static_cast<double>(a[i])));
  }
  return a.size() == b.size() ? largest / size : 1e9;
}

class AdapterOf : public testing::TestWithParam<Case> {};

TEST_P(AdapterOf, MergedAndUnmergedLogitsAgree) {
  AdaptedModel model(GetParam());
  const std::vector<float> before = model.floats.score(model.rows, true).logits;
  const std::vector<float> unmerged = model.adapted->score(model.rows, true).logits;
  EXPECT_LE(largest_difference(unmerged, model.merged().score(model.rows, true).logits), 1e-5);
  EXPECT_GT(largest_difference(unmerged, before), 0.01) << "the adapters change the model";
}

// The gradients of the adapters follow from that of the merged matrix w: da = s b^T dw and
// db = s dw a^T.
TEST_P(AdapterOf, GradientsFollowFromThoseOfTheMergedMatrix) {
  AdaptedModel model(GetParam());
  const ParamTable& adapters = model.table->params();
  std::vector<float> found(model.adapted->weights().size());
  const double loss = model.adapted->add_gradients(model.rows, found, {});
  const std::vector<float> values(model.adapted->weights().begin(), model.adapted->weights().end());
  Model& merged = model.merged();
  std::vector<float> of_merged(merged.weights().size());
  EXPECT_NEAR(merged.add_gradients(model.rows, of_merged, {}), loss, 1e-5 * std::abs(loss));
  const double scale = model.table->lora().scale();
  std::size_t checked = 0;
  for (const Param& w : merged.params().all()) {
    const std::string stem = w.name.substr(0, w.name.rfind(".weight"));
    const Param *a = adapters.find(stem + ".lora_A.weight"), *b = adapters.find(stem + ".lora_B.weight");
    if (!a) continue;
    ++checked;
    const auto dw = w.in(std::span(of_merged));
    const auto a_values = a->in(std::span(values)), b_values = b->in(std::span(values));
    std::vector<float> da(a_values.size()), db(b_values.size());
    for (std::int64_t o = 0; o < w.rows; ++o)
      for (std::int64_t i = 0; i < w.cols; ++i)
        for (std::int64_t r = 0; r < a->rows; ++r) {
          const auto at = [](std::int64_t row, std::int64_t cols, std::int64_t col) {
            return static_cast<std::size_t>(row * cols + col);
          };
          const auto g = static_cast<float>(scale) * dw[at(o, w.cols, i)];
          da[at(r, w.cols, i)] += b_values[at(o, a->rows, r)] * g;
          db[at(o, a->rows, r)] += g * a_values[at(r, w.cols, i)];
        }
    EXPECT_LE(largest_difference(da, a->in(std::span(found))), 1e-4) << w.name;
    EXPECT_LE(largest_difference(db, b->in(std::span(found))), 1e-4) << w.name;
  }
  EXPECT_EQ(2 * checked, adapters.all().size());
}

TEST_P(AdapterOf, RecomputingBlocksGivesTheSameGradients) {
  AdaptedModel model(GetParam());
  std::vector<float> kept(model.adapted->weights().size()), recomputed(kept.size());
  model.adapted->add_gradients(model.rows, kept, {});
  model.adapted->add_gradients(model.rows, recomputed, {.recompute = true});
  EXPECT_EQ(kept, recomputed);
}

TEST_P(AdapterOf, DecodingIsScoring) {
  AdaptedModel model(GetParam());
  Model& adapted = *model.adapted;
  const std::int64_t length = AdaptedModel::kLength;
  const std::vector<std::int32_t> text(model.tokens.begin(), model.tokens.begin() + length);
  const std::vector<float> expected = adapted.score(grid_rows(model.config, length, text), true).logits;
  KvCache cache(model.config, 1);
  std::vector<float> decoded;
  for (std::int32_t position = 0; position < length; ++position) {
    const auto at = [&](std::int32_t back) {
      return position < back ? -1 : text[static_cast<std::size_t>(position - back)];
    };
    const std::vector<DecodeRow> row = {
        {.token = at(0), .previous = at(1), .before_previous = at(2), .position = position, .slot = 0}};
    const Tensor logits = adapted.decode(decode_rows(model.config, 1, row), cache);
    decoded.insert(decoded.end(), logits.row<float>(0), logits.row<float>(0) + logits.cols);
  }
  EXPECT_LE(largest_difference(expected, decoded), 2e-5);
}

constexpr std::uint32_t kAll = LoraTargets().bits;
INSTANTIATE_TEST_SUITE_P(
    Adapters, AdapterOf,
    testing::Values(Case{"all", "llama", kAll},
                    Case{"k_and_v", "llama", bits({LoraTarget::k, LoraTarget::v})},
                    Case{"q_and_up", "llama", bits({LoraTarget::q, LoraTarget::up})},
                    Case{"biases", "llama", kAll, {"qkv_bias=true", "tie_embeddings=false"}},
                    Case{"without_gate", "golf", kAll},
                    Case{"loop", "golf", kAll, {"loop_first=1", "loop_last=2", "loop_count=2"}}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(Adapters, TrainInBf16NearTheGradientsOfF32) {
  const Case all{"all", "llama", kAll};
  AdaptedModel f32(all), bf16(all, {.rank = 3, .alpha = 2}, DType::bf16);
  std::vector<float> exact(f32.adapted->weights().size()), rounded(exact.size());
  f32.adapted->add_gradients(f32.rows, exact, {});
  bf16.adapted->add_gradients(bf16.rows, rounded, {});
  EXPECT_LE(largest_difference(exact, rounded), 0.1);
  EXPECT_GT(largest_difference(exact, rounded), 1e-4);
}

TEST(Adapters, DropoutChangesTrainingAndNotScoring) {
  const Case all{"all", "llama", kAll};
  AdaptedModel plain(all), dropping(all, {.rank = 3, .alpha = 2, .dropout = 0.5});
  std::vector<float> gradients(plain.adapted->weights().size());
  const double loss = plain.adapted->add_gradients(plain.rows, gradients, {});
  EXPECT_NE(dropping.adapted->add_gradients(dropping.rows, gradients, {.dropout_seed = 3}), loss);
  EXPECT_EQ(dropping.adapted->score(dropping.rows, true).logits,
            plain.adapted->score(plain.rows, true).logits);
}

TEST(Adapters, RefuseRanksAboveTheMatrixAndNoLayer) {
  const ModelConfig config = small_config("llama");
  EXPECT_EQ(message_of([&] { AdapterTable(config, {.rank = 17}); }),
            "lora_rank is 17, but model.layers.0.self_attn.k_proj.weight is only 16 x 32");
  EXPECT_EQ(message_of([&] {
              AdapterTable(small_config("golf"), {.rank = 2, .targets = {bits({LoraTarget::gate})}});
            }),
            "no layer of this model is in lora_targets");
}

TEST(Adapters, StabilizedScaleDividesByTheRootOfTheRank) {
  EXPECT_EQ((LoraConfig{.rank = 16}).scale(), 2);
  EXPECT_EQ((LoraConfig{.rank = 16, .alpha = 8}).scale(), 0.5);
  EXPECT_EQ((LoraConfig{.rank = 16, .alpha = 8, .stabilized = true}).scale(), 2);
}

}  // namespace
}  // namespace thimble::adapter_test
