// Stored weights: their formats and layout, and that models with stored weights give the same
// results as with f32 weights.
#include "model/stored_weights.h"

#include <algorithm>
#include <cmath>
#include <thread>

#include "model/random_model.h"
#include "ops/quantize.h"
#include "support/message_of.h"

namespace thimble::stored_weights_test {
namespace {

constexpr WeightFormat kFormats[] = {WeightFormat::f32, WeightFormat::bf16, WeightFormat::f16,
                                     WeightFormat::int8_rows};

// Random weights in the given formats; quantized for integer formats.
std::shared_ptr<StoredWeights> random_weights(const ParamTable& table, std::vector<WeightFormat> formats) {
  auto stored = std::make_shared<StoredWeights>(table, formats);
  std::mt19937 random(29);
  std::normal_distribution<float> normal(0, 0.4f);
  for (const Param& param : table.all()) {
    const StoredWeights::Stored target = stored->tensor(param);
    for (std::int64_t r = 0; r < param.rows; ++r) {
      std::vector<float> row(static_cast<std::size_t>(param.cols));
      for (float& value : row) value = normal(random);
      const std::int64_t groups = target.scales ? target.scales.cols : 0;
      for (std::int64_t g = 0; g < groups; ++g) {
        const auto begin = static_cast<std::size_t>(g * 32);
        const std::size_t count = groups == 1 ? row.size() : std::min<std::size_t>(32, row.size() - begin);
        target.scales.row<float>(r)[g] =
            quantize_row(std::span(row).subspan(begin, count), 6,
                         std::span(target.values.row<std::int8_t>(r) + begin, count));
      }
      for (std::size_t c = 0; groups == 0 && c < row.size(); ++c)
        if (target.values.dtype == DType::bf16)
          target.values.row<bf16>(r)[c] = to_bf16(row[c]);
        else if (target.values.dtype == DType::f16)
          target.values.row<f16>(r)[c] = to_f16(row[c]);
        else
          target.values.row<float>(r)[c] = row[c];
    }
  }
  return stored;
}

std::shared_ptr<StoredWeights> random_weights(const ParamTable& table, WeightFormat format) {
  return random_weights(table, std::vector(table.all().size(), format));
}

// A different format for each matrix in turn.
std::shared_ptr<StoredWeights> mixed_weights(const ParamTable& table) {
  std::vector<WeightFormat> formats;
  for (const Param& param : table.all())
    formats.push_back(
        kFormats[(static_cast<std::size_t>(param.role) + static_cast<std::size_t>(param.layer + 1)) %
                 std::size(kFormats)]);
  return random_weights(table, formats);
}

Model float_model(const ModelConfig& config, const StoredWeights& weights, const Context& context) {
  Model model(config, context);
  weights.unpack(model.params(), model.weights());
  model.weights_changed();
  return model;
}

std::vector<DecodeRow> rows_of(std::span<const std::int32_t> tokens, std::int32_t slot) {
  std::vector<DecodeRow> rows;
  for (std::size_t i = 0; i < tokens.size(); ++i)
    rows.push_back({.token = tokens[i],
                    .previous = i > 0 ? tokens[i - 1] : -1,
                    .before_previous = i > 1 ? tokens[i - 2] : -1,
                    .position = static_cast<std::int32_t>(i),
                    .slot = slot});
  return rows;
}

std::vector<float> decoded(Model& model, std::span<const std::int32_t> tokens, std::size_t batch_rows) {
  KvCache cache(model.config(), 1, model.dtype());
  std::vector<float> all;
  const std::vector<DecodeRow> rows = rows_of(tokens, 0);
  for (std::size_t begin = 0; begin < rows.size(); begin += batch_rows) {
    const auto part = std::span(rows).subspan(begin, std::min(batch_rows, rows.size() - begin));
    const Tensor logits = model.decode(decode_rows(model.config(), 1, part), cache);
    all.insert(all.end(), logits.row<float>(0), logits.row<float>(0) + logits.count());
  }
  return all;
}

void expect_near(std::span<const float> expected, std::span<const float> found, float relative) {
  ASSERT_EQ(expected.size(), found.size());
  float largest = 0;
  for (const float value : expected) largest = std::max(largest, std::abs(value));
  for (std::size_t i = 0; i < expected.size(); ++i)
    ASSERT_NEAR(expected[i], found[i], relative * largest) << "logit " << i;
}

class StoredModels : public testing::TestWithParam<const char*> {
 protected:
  // Runs `body` for each format and for mixed formats.
  template <class Body>
  void for_weights(Body body) const {
    const ParamTable table(config_);
    for (const WeightFormat format : kFormats) {
      SCOPED_TRACE(static_cast<int>(format));
      body(random_weights(table, format));
    }
    SCOPED_TRACE("mixed");
    body(mixed_weights(table));
  }

  const ModelConfig config_ = small_config(GetParam());
  const Context context_;
  std::mt19937 random_{3};
};

TEST_P(StoredModels, DecodeLikeF32Weights) {
  const auto tokens = random_tokens(random_, config_, 19);
  for_weights([&](const std::shared_ptr<StoredWeights>& weights) {
    Model floats = float_model(config_, *weights, context_), stored(config_, context_, DType::f32, weights);
    expect_near(decoded(floats, tokens, 19), decoded(stored, tokens, 19), 2e-5f);
  });
}

// Products of many rows unpack the matrices to f32, so the results are bit-identical.
TEST_P(StoredModels, ScoreBitIdenticallyToF32Weights) {
  const auto tokens = random_tokens(random_, config_, 24);
  auto targets = tokens;
  std::rotate(targets.begin(), targets.begin() + 1, targets.end());
  for_weights([&](const std::shared_ptr<StoredWeights>& weights) {
    Model floats = float_model(config_, *weights, context_), stored(config_, context_, DType::f32, weights);
    const Rows rows = grid_rows(config_, 12, tokens, targets);
    const Model::Scores a = floats.score(rows, true), b = stored.score(rows, true);
    EXPECT_EQ(a.nats, b.nats);
    EXPECT_EQ(a.logits, b.logits);
  });
}

TEST_P(StoredModels, DecodeTheSameBitsForAnyBatchSize) {
  const auto tokens = random_tokens(random_, config_, 19);
  for_weights([&](const std::shared_ptr<StoredWeights>& weights) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      SCOPED_TRACE(dtype_name(dtype));
      Model model(config_, context_, dtype, stored_for_rows(ParamTable(config_), weights, dtype));
      const std::vector<float> one_batch = decoded(model, tokens, 19);
      for (const std::size_t batch_rows : {1, 2, 3, 5, 8})
        EXPECT_EQ(one_batch, decoded(model, tokens, batch_rows)) << batch_rows;
    }
  });
}

// Rounding to bf16 changes the logits of these small random models by a few percent.
TEST_P(StoredModels, InBf16AreCloseToF32Weights) {
  const auto tokens = random_tokens(random_, config_, 19);
  for_weights([&](const std::shared_ptr<StoredWeights>& weights) {
    Model floats = float_model(config_, *weights, context_);
    Model stored(config_, context_, DType::bf16, stored_for_rows(ParamTable(config_), weights, DType::bf16));
    const std::vector<float> a = decoded(floats, tokens, 19), b = decoded(stored, tokens, 19);
    double product = 0, squares_a = 0, squares_b = 0;
    for (std::size_t i = 0; i < a.size(); ++i)
      product += double{a[i]} * b[i], squares_a += double{a[i]} * a[i], squares_b += double{b[i]} * b[i];
    EXPECT_GT(product / std::sqrt(squares_a * squares_b), 0.99);
  });
}

// The server decodes on another thread than the one that created the model.
TEST_P(StoredModels, DecodeOnAnotherThread) {
  const auto tokens = random_tokens(random_, config_, 9);
  Model model(config_, context_, DType::f32, random_weights(ParamTable(config_), WeightFormat::int8_rows));
  const std::vector<float> here = decoded(model, tokens, 3);
  std::vector<float> there;
  std::thread([&] { there = decoded(model, tokens, 3); }).join();
  EXPECT_EQ(here, there);
}

std::string named(const testing::TestParamInfo<const char*>& info) {
  std::string name = info.param;
  std::erase(name, '-');
  return name;
}
INSTANTIATE_TEST_SUITE_P(, StoredModels, testing::Values("golf-plus", "llama", "microgpt"), named);

TEST(StoredWeights, AMatrixWithOneRowIsNotAVector) {
  const ModelConfig config =
      small_config("microgpt", {"heads=1", "kv_heads=1", "head_dim=1", "mlp_hidden=1"});
  const ParamTable table(config);
  EXPECT_EQ(table.qkv(0).rows, 3);
  EXPECT_EQ(table.qkv(0).cols, config.dim);
  const Context context;
  std::mt19937 random(3);
  const auto tokens = random_tokens(random, config, 19);
  for (const WeightFormat format : kFormats) {
    const auto weights = random_weights(table, format);
    Model floats = float_model(config, *weights, context), stored(config, context, DType::f32, weights);
    expect_near(decoded(floats, tokens, 19), decoded(stored, tokens, 19), 2e-5f);
  }
}

TEST(StoredWeights, TensorsOfOneMatrixShareAFormat) {
  const ParamTable table(small_config("llama"));
  std::vector<WeightFormat> formats(table.all().size(), WeightFormat::int8_rows);
  for (std::size_t i = 0; i < formats.size(); ++i)
    if (table.all()[i].role == Role::value && table.all()[i].layer == 1) formats[i] = WeightFormat::f16;
  const StoredWeights weights(table, formats);
  EXPECT_EQ(weights.view(table.qkv(0)).values.dtype, DType::i8);
  EXPECT_EQ(weights.view(table.qkv(0)).scales.rows, table.qkv(0).rows);
  EXPECT_EQ(weights.view(table.qkv(1)).values.dtype, DType::f32);
  EXPECT_FALSE(weights.view(table.qkv(1)).scales);
  EXPECT_EQ(weights.view(table.attn_norm(0)).values.dtype, DType::f32) << "vectors are always f32";
  EXPECT_THROW(weights.view({table.qkv(0).offset + 1, 1, table.qkv(0).cols}), Error);
}

TEST(StoredWeights, ExactStorageUsesTheNarrowestLosslessFormat) {
  const ParamTable table(small_config("llama"));
  std::vector<float> block(static_cast<std::size_t>(table.block_size()));
  initialize(table, 1, block);
  const auto values = [&](const ParamView& view) {
    return std::span(block).subspan(static_cast<std::size_t>(view.offset),
                                    static_cast<std::size_t>(view.count()));
  };
  for (float& value : values(table.mlp_proj(0))) value = to_f32(to_bf16(value));
  for (float& value : values(table.mlp_proj(1))) value = to_f32(to_f16(value));
  const StoredWeights weights = stored_exactly(table, block);
  EXPECT_EQ(weights.view(table.mlp_proj(0)).values.dtype, DType::bf16);
  EXPECT_EQ(weights.view(table.mlp_proj(1)).values.dtype, DType::f16);
  EXPECT_EQ(weights.view(table.mlp_proj(2)).values.dtype, DType::f32);
  std::vector<float> again(block.size());
  weights.unpack(table, again);
  for (const Param& param : table.all())
    EXPECT_TRUE(std::ranges::equal(values({param.offset, param.rows, param.cols}),
                                   std::span(again).subspan(static_cast<std::size_t>(param.offset),
                                                            static_cast<std::size_t>(param.count()))))
        << param.name;
}

TEST(StoredWeights, CannotBeTrainedOrReadAsF32) {
  const ModelConfig config = small_config("llama");
  const Context context;
  Model model(config, context, DType::f32, random_weights(ParamTable(config), WeightFormat::int8_rows));
  EXPECT_NE(message_of([&] { model.weights(); }).find("cannot be accessed as floats"), std::string::npos);
  EXPECT_NE(message_of([&] { model.training_program(4, {}); }).find("cannot be trained"), std::string::npos);
}

// Every matrix has the compute dtype; its values are rounded at most once.
TEST(StoredForGpu, ConvertsMatricesToTheComputeDtype) {
  const ModelConfig config = small_config("golf-plus");
  const ParamTable table(config);
  const auto mixed = mixed_weights(table);
  std::vector<float> expected(static_cast<std::size_t>(table.block_size())), found = expected;
  mixed->unpack(table, expected);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    SCOPED_TRACE(dtype_name(dtype));
    const auto expanded = stored_for_gpu(table, mixed, dtype);
    expanded->unpack(table, found);
    for (const Param& param : table.all()) {
      const StoredWeights::Stored tensor = expanded->tensor(param);
      EXPECT_FALSE(tensor.scales) << param.name;
      EXPECT_EQ(tensor.values.dtype, param.role <= Role::mlp_proj ? dtype : DType::f32) << param.name;
      for (std::int64_t i = param.offset; i < param.offset + param.count(); ++i) {
        const float value = expected[static_cast<std::size_t>(i)];
        ASSERT_EQ(found[static_cast<std::size_t>(i)],
                  tensor.values.dtype == DType::bf16 ? to_f32(to_bf16(value)) : value);
      }
    }
    EXPECT_EQ(stored_for_gpu(table, expanded, dtype), expanded) << "nothing to convert";
  }
}

}  // namespace
}  // namespace thimble::stored_weights_test
