// Evaluation on a GPU gives the CPU's results, for every storage format of the weights.
#include "base/rng.h"
#include "cuda/device.h"
#include "eval/score.h"
#include "eval/small_model.h"
#include "model/stored_weights.h"

namespace thimble::eval_test {
namespace {

constexpr std::int64_t kContext = 96;

// Texts of various lengths, some longer than the context.
struct Texts {
  std::unique_ptr<Tokenizer> tokenizer = load_tokenizer("bytes");
  std::vector<std::int32_t> tokens;

  Texts() {
    for (int text = 0; text < 200; ++text) {
      tokens.push_back(*tokenizer->special().bos);
      for (int i = 0; i < 3 + text * 7 % 250; ++i) tokens.push_back(5 + (i * i + text) % 250);
    }
  }

  double loss(Model& model, const ScoreOptions& options) const {
    const ByteTable bytes(*tokenizer, static_cast<TokenId>(model.config().vocab_size));
    const TokenSet set(tokens, TokenMarks::of(*tokenizer, DataKind::text, LossOn::assistant));
    const Score score = score_set(model, bytes, set, options, ProgressOutput::nowhere());
    EXPECT_GT(score.tokens, 0);
    return score.loss();
  }
};

TEST(EvalOnCuda, MatchesTheLossesOfTheCpu) {
  const auto gpu = find_gpu();
  if (!gpu.runtime) GTEST_SKIP() << gpu.reason;
  const Context cpu, cuda(gpu.runtime);
  const Texts texts;
  for (const char* preset : {"golf-plus", "microgpt", "qwen3"}) {
    SCOPED_TRACE(preset);
    const auto model = [&](const Context& context, DType dtype) {
      return small_model(context, texts.tokenizer->vocab_size(), kContext, preset, dtype);
    };
    const auto cpu_model = model(cpu, DType::f32), gpu_model = model(cuda, DType::f32),
               narrow = model(cuda, DType::bf16);
    for (const ScoreOptions& options :
         {ScoreOptions{.context = kContext, .stride = kContext},
          ScoreOptions{.context = kContext, .stride = 16},
          ScoreOptions{.context = kContext, .stride = kContext, .isolate = false}}) {
      const double expected = texts.loss(*cpu_model, options);
      EXPECT_NEAR(texts.loss(*gpu_model, options) / expected, 1, 1e-5);
      EXPECT_NEAR(texts.loss(*narrow, options) / expected, 1, 5e-3);
    }
  }
}

TEST(EvalOnCuda, BatchSizeDoesNotChangeTheLoss) {
  const auto gpu = find_gpu();
  if (!gpu.runtime) GTEST_SKIP() << gpu.reason;
  const Context cuda(gpu.runtime);
  const Texts texts;
  const auto model = small_model(cuda, texts.tokenizer->vocab_size(), kContext, "golf", DType::bf16);
  EXPECT_GT(model->max_score_rows(), 8192);
  EXPECT_NEAR(texts.loss(*model, {.context = kContext, .stride = 8}),
              texts.loss(*model, {.context = kContext, .stride = 8, .tokens_at_a_time = 1000}), 1e-3);
}

// Integers, f16 and bf16 are expanded on upload; results equal those of f32 masters.
TEST(EvalOnCuda, StoredWeightsAreExpanded) {
  const auto gpu = find_gpu();
  if (!gpu.runtime) GTEST_SKIP() << gpu.reason;
  const Context cpu, cuda(gpu.runtime);
  const Texts texts;
  const auto floats = small_model(cpu, texts.tokenizer->vocab_size(), kContext, "golf");
  const ModelConfig config = floats->config();
  const ParamTable table(config);
  for (const WeightFormat format : {WeightFormat::f16, WeightFormat::int8_rows}) {
    SCOPED_TRACE(static_cast<int>(format));
    const std::vector<WeightFormat> formats(table.all().size(), format);
    const auto stored = std::make_shared<StoredWeights>(table, formats);
    for (const Param& param : table.all()) {
      const StoredWeights::Stored place = stored->tensor(param);
      const auto values = floats->weights().subspan(static_cast<std::size_t>(param.offset),
                                                    static_cast<std::size_t>(param.count()));
      if (place.values.dtype != DType::i8) {
        store_floats(values, place.values);
        continue;
      }
      for (std::int64_t i = 0; i < place.values.count(); ++i)
        place.values.row<std::int8_t>(0)[i] =
            static_cast<std::int8_t>(values[static_cast<std::size_t>(i)] * 100);
      for (std::int64_t i = 0; i < place.scales.count(); ++i) place.scales.row<float>(0)[i] = 0.01f;
    }
    Model masters(config, cuda);
    stored->unpack(table, masters.weights());
    masters.weights_changed();
    Model expanded(config, cuda, DType::f32, stored_for_gpu(table, stored, DType::f32)),
        narrow(config, cuda, DType::bf16, stored_for_gpu(table, stored, DType::bf16));
    const ScoreOptions options{.context = kContext, .stride = kContext};
    const double expected = texts.loss(masters, options);
    EXPECT_EQ(texts.loss(expanded, options), expected);
    EXPECT_NEAR(texts.loss(narrow, options) / expected, 1, 5e-3);
  }
}

}  // namespace
}  // namespace thimble::eval_test
