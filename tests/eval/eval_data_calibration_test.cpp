// GPTQ calibration: the calibration windows, and the second moments of the inputs of every matrix.
#include "eval/eval_data.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "base/error.h"
#include "eval/small_model.h"
#include "support/ticking_progress.h"

namespace thimble::eval_data_calibration_test {
namespace {

constexpr std::int64_t kVocabulary = 60, kContext = 16;

TokenSet some_tokens(std::size_t count) {
  std::vector<std::int32_t> tokens(count);
  for (std::size_t i = 0; i < count; ++i)
    tokens[i] = i % 23 == 0 ? 1 : static_cast<std::int32_t>(2 + i * i % 50);
  return {tokens, {.bos = 1}};
}

double mean_square(const InputMoments::Moment& moment) {
  double trace = 0;
  for (std::int64_t c = 0; c < moment.width(); ++c)
    trace += moment.sums[static_cast<std::size_t>(c * moment.width() + c)];
  return trace / static_cast<double>(moment.rows * moment.width());
}

class Calibrate : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(DTypes, Calibrate, testing::Values(DType::f32, DType::bf16),
                         [](const auto& info) { return std::string(dtype_name(info.param)); });

TEST(ScoreWindows, ShowsProgress) {
  const Context context;
  const auto model = small_model(context, kVocabulary, kContext);
  const Grid windows = calibration_windows(some_tokens(500), model->config(), 10 * kContext);
  TickingProgress progress;
  EXPECT_GT(score_windows(*model, windows, 5 * kContext, progress.output()).tokens, 0);
  EXPECT_TRUE(progress.shows("scoring")) << progress.lines;
}

TEST_P(Calibrate, CollectsTheInputsOfEveryMatrix) {
  const Context context;
  const auto model = small_model(context, kVocabulary, kContext, "golf-plus", GetParam());
  const Grid windows = calibration_windows(some_tokens(500), model->config(), 10 * kContext);
  EXPECT_EQ(windows.input.size(), 10u * kContext);
  const InputMoments moments = calibrate(*model, windows, ProgressOutput::nowhere());
  EXPECT_EQ(moments.rows(), 10 * kContext);
  const ParamTable& table = model->params();
  for (const Param& param : table.all()) {
    const bool looked_up = param.role == Role::bigram_embedding || param.role == Role::position_embedding;
    const InputMoments::Moment* moment = moments.of(param);
    EXPECT_EQ(moment != nullptr, param.dims.size() == 2 && !looked_up && !param.control) << param.name;
    if (!moment) continue;
    EXPECT_EQ(moment->rows, 10 * kContext) << param.name;
    // Golf's norms have no weight, so their outputs have a mean square of 1.
    const bool normed = param.role == Role::query || param.role == Role::key || param.role == Role::mlp_fc ||
                        param.role == Role::token_embedding;
    if (normed) {
      EXPECT_NEAR(mean_square(*moment), 1, 1e-2) << param.name;
    }
  }
  EXPECT_EQ(moments.of(*table.find("blocks.0.attn.c_q.weight")),
            moments.of(*table.find("blocks.0.attn.c_v.weight")));
  EXPECT_NE(moments.of(*table.find("blocks.0.attn.c_q.weight")),
            moments.of(*table.find("blocks.1.attn.c_q.weight")));

  // Calibrating again gives the same moments, and scoring is not affected by calibration.
  const std::vector<float> before =
      model->score(grid_rows(model->config(), kContext, windows.input, windows.target, windows.doc_start))
          .nats;
  const InputMoments again = calibrate(*model, windows, ProgressOutput::nowhere());
  EXPECT_EQ(again.all().begin()->second.sums, moments.all().begin()->second.sums);
  EXPECT_EQ(
      model->score(grid_rows(model->config(), kContext, windows.input, windows.target, windows.doc_start))
          .nats,
      before);
}

TEST(CalibrationWindows, AreSpreadOverTheSetAndLimitedByItsSize) {
  const Context context;
  const auto model = small_model(context, kVocabulary, kContext, "golf");
  const TokenSet set = some_tokens(100);
  EXPECT_EQ(calibration_windows(set, model->config(), 1 << 20).input.size(), 6u * kContext);
  const Grid two = calibration_windows(set, model->config(), 2 * kContext);
  ASSERT_EQ(two.input.size(), 2u * kContext);
  EXPECT_EQ(two.input[0], set.at(0));
  EXPECT_EQ(two.input[kContext], set.at(50));
  EXPECT_EQ(calibration_windows(some_tokens(5), model->config(), 100).input.size(), std::size_t{kContext});
}

TEST(SampledWindows, AreReproducibleForASeed) {
  const Context context;
  const auto model = small_model(context, kVocabulary, kContext, "golf-plus");
  const auto sample = [&](std::uint64_t seed) {
    return sampled_windows(*model, 1, 20 * kContext, seed, ProgressOutput::nowhere());
  };
  const Grid first = sample(0);
  ASSERT_EQ(first.input.size(), 20u * kContext);
  EXPECT_EQ(first.doc_start.size(), first.input.size());
  for (std::size_t i = 0; i < first.input.size(); i += kContext) EXPECT_EQ(first.input[i], 1);
  EXPECT_EQ(sample(0).input, first.input);
  EXPECT_NE(sample(1).input, first.input);
  EXPECT_EQ(calibrate(*model, first, ProgressOutput::nowhere()).rows(), 20 * kContext);
}

// A request is limited to 1000 samples, and 131,072 tokens need more than that for contexts below
// 132.
TEST(SampledWindows, MayExceedTheLimitOfOneRequest) {
  const Context context;
  const auto model = small_model(context, kVocabulary, 4, "golf");
  const Grid many = sampled_windows(*model, 1, 1100 * 4, 0, ProgressOutput::nowhere());
  ASSERT_EQ(many.input.size(), 1100u * 4);
  const Grid later = sampled_windows(*model, 1, 4, 1050, ProgressOutput::nowhere());
  EXPECT_TRUE(std::ranges::equal(later.input, std::span(many.input).subspan(1050 * 4, 4)));
}

}  // namespace
}  // namespace thimble::eval_data_calibration_test
