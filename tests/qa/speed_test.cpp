// Measurements of prompts and decoding.
#include <cmath>

#include "eval/small_model.h"
#include "qa/speed.h"

namespace thimble {
namespace {

TEST(Speed, FollowsTheProtocol) {
  const Context context;
  const auto model = small_model(context, 50, 64);
  const Speed prefill = prefill_speed(*model, {.tokens = 32, .repeats = 3}, ProgressOutput::nowhere());
  EXPECT_EQ(prefill.name, "pp32");
  EXPECT_EQ(prefill.rates.size(), 3u);
  const Speed decode =
      decode_speed(*model, {.tokens = 8, .depth = 16, .streams = 3, .repeats = 2}, ProgressOutput::nowhere());
  EXPECT_EQ(decode.name, "tg8 @ d16");
  EXPECT_EQ(decode.rates.size(), 2u);
  EXPECT_GT(decode.first_token_seconds, 0);
  for (const double rate : decode.rates) EXPECT_GT(rate, 0);
  EXPECT_EQ(message_of([&] { decode_speed(*model, {.tokens = 65}, ProgressOutput::nowhere()); }),
            "65 tokens exceed the model's context of 64");
}

TEST(Speed, MeanAndSampleDeviation) {
  const Speed speed{"x", {1, 2, 3, 6}};
  EXPECT_EQ(speed.mean(), 3);
  EXPECT_DOUBLE_EQ(speed.deviation(), std::sqrt((4 + 1 + 0 + 9) / 3.0));
  EXPECT_EQ((Speed{"x", {5}}.deviation()), 0);
}

TEST(Speed, CountsFlopsAndBytes) {
  const Context context;
  const auto model = small_model(context, 50, 64);
  const Model bf16(model->config(), context, DType::bf16);
  const ParamTable& params = model->params();
  const double matrices = static_cast<double>(params.count(ParamGroup::matrix));
  const double head = 50 * 32;
  EXPECT_EQ(bytes_per_token(*model, 0), 4 * (matrices + head));
  EXPECT_EQ(bytes_per_token(bf16, 10), 2 * (matrices + head + 10 * 2 * 2 * 16));
  // Two tokens have 3 query-key pairs; a pair costs 4 FLOPs per element of q.
  EXPECT_EQ(prefill_flops(*model, 2, 0), 2 * 2 * matrices + 4 * 3 * 2 * 32 + 2 * head);
}

TEST(ReadBandwidth, IsMeasured) {
  EXPECT_GT(read_bandwidth(1 << 20, 0.01), 1e8);
}

}  // namespace
}  // namespace thimble
