// For every preset, the batcher gives the same log-probabilities as scoring the complete text, and
// results are bit-identical for any combination of other requests, blocks and slots.
#include <cmath>
#include <random>

#include "config/builder.h"
#include "eval/small_model.h"
#include "infer/plain_sample.h"
#include "infer/run_requests.h"

namespace thimble::every_preset_test {
namespace {

constexpr std::int64_t kContext = 160;  // more than two blocks
constexpr double kTolerance = 1e-4;

std::vector<TokenId> random_prompt(std::mt19937& random, std::int64_t vocab_size, std::size_t length) {
  std::vector<TokenId> prompt(length);
  for (TokenId& token : prompt)
    token = static_cast<TokenId>(random() % static_cast<std::uint64_t>(vocab_size));
  return prompt;
}

class EveryPreset : public testing::TestWithParam<std::string_view> {
 protected:
  Context context_;
  std::unique_ptr<Tokenizer> tokenizer_ = load_tokenizer("bytes");
  std::unique_ptr<Model> model_ =
      small_model(context_, tokenizer_->vocab_size(), kContext, std::string(GetParam()).c_str());
  std::mt19937 random_{41};

  Request request(std::size_t length, float temperature, std::uint64_t seed = 0) {
    return {.prompt = random_prompt(random_, tokenizer_->vocab_size(), length),
            .sampling = {.temperature = temperature, .seed = seed},
            .max_tokens = kContext,
            .logprobs = 3};
  }

  // Log-probabilities of all next tokens, from scoring the text in one call.
  struct Scored {
    std::vector<std::vector<double>> logprobs;  // [T][V]
  };
  Scored score(std::vector<TokenId> tokens) {
    tokens.resize(std::min(tokens.size(), static_cast<std::size_t>(kContext)));
    const auto logits =
        model_->score(grid_rows(model_->config(), static_cast<std::int64_t>(tokens.size()), tokens), true)
            .logits;
    const auto V = static_cast<std::size_t>(model_->config().vocab_size);
    Scored scored;
    for (std::size_t t = 0; t < tokens.size(); ++t) {
      std::vector<double> row(logits.begin() + static_cast<std::ptrdiff_t>(t * V),
                              logits.begin() + static_cast<std::ptrdiff_t>((t + 1) * V));
      double total = 0;
      for (const double logit : row) total += std::exp(logit);
      for (double& logit : row) logit -= std::log(total);
      scored.logprobs.push_back(row);
    }
    return scored;
  }
};

TEST_P(EveryPreset, GreedyTextAndLogProbabilitiesMatchScoring) {
  Request greedy = request(130, 0);
  greedy.score_prompt = true;
  Batcher batcher(*model_, tokenizer_.get(), {.slots = 1, .rows_per_step = 64});
  const Sample sample = generate(batcher, greedy).at(0);
  ASSERT_EQ(sample.tokens.size(), 31u) << "until the context is full; the last token is beyond it";
  ASSERT_EQ(sample.prompt.size(), 130u);
  EXPECT_TRUE(std::isnan(sample.prompt[0].logprob));

  std::vector<TokenScore> all = sample.prompt;
  all.insert(all.end(), sample.tokens.begin(), sample.tokens.end());
  const Scored scored = score(ids_of(all));
  for (std::size_t t = 1; t < all.size(); ++t) {
    const std::vector<double>& expected = scored.logprobs[t - 1];
    ASSERT_NEAR(all[t].logprob, expected[static_cast<std::size_t>(all[t].id)], kTolerance) << "token " << t;
    ASSERT_EQ(all[t].top.size(), 3u);
    for (const auto& [id, logprob] : all[t].top)
      ASSERT_NEAR(logprob, expected[static_cast<std::size_t>(id)], kTolerance);
    const auto most_likely = std::ranges::max_element(expected) - expected.begin();
    ASSERT_EQ(all[t].top[0].first, most_likely) << "token " << t;
    ASSERT_TRUE(t < sample.prompt.size() || all[t].id == most_likely);
  }
}

TEST_P(EveryPreset, ResultsAreBitIdenticalAloneAndAmongEightOthers) {
  std::vector<Request> requests;
  for (const std::size_t length : {1u, 150u, 64u, 17u, 3u, 90u, 65u, 128u, 40u})
    requests.push_back(request(length, 1, length));
  Batcher together(*model_, tokenizer_.get(), {.slots = 9}),
      crowded(*model_, tokenizer_.get(), {.slots = 3, .rows_per_step = 100});
  const auto among = run_requests(together, requests), in_turns = run_requests(crowded, requests);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    SCOPED_TRACE(requests[i].prompt.size());
    const Sample alone = plain_sample(*model_, *tokenizer_, requests[i]);
    for (const Sample* sample : {&among[i], &in_turns[i]}) {
      EXPECT_TRUE(std::ranges::equal(sample->tokens, alone.tokens, same_bits));
      EXPECT_EQ(sample->text, alone.text);
    }
  }
}

// One request reuses half of its prompt in a slot, another copies it from a slot in use.
TEST_P(EveryPreset, AReusedPrefixGivesBitIdenticalResults) {
  Request first = request(100, 1, 1), second = request(50, 1, 2);
  first.max_tokens = 20;
  second.prompt.insert(second.prompt.begin(), first.prompt.begin(), first.prompt.begin() + 75);
  Request third = second;
  third.prompt.resize(80);
  Batcher batcher(*model_, tokenizer_.get(), {.slots = 2});
  run_requests(batcher, {first});
  const auto samples = run_requests(batcher, {second, third});
  EXPECT_EQ(samples[0].usage.cached_tokens, 75);
  EXPECT_EQ(samples[1].usage.cached_tokens, 75);
  EXPECT_TRUE(
      std::ranges::equal(samples[0].tokens, plain_sample(*model_, *tokenizer_, second).tokens, same_bits));
  EXPECT_TRUE(
      std::ranges::equal(samples[1].tokens, plain_sample(*model_, *tokenizer_, third).tokens, same_bits));
}

INSTANTIATE_TEST_SUITE_P(Batcher, EveryPreset, testing::ValuesIn(preset_names()), [](const auto& info) {
  std::string name(info.param);
  std::erase(name, '-');
  return name;
});

}  // namespace
}  // namespace thimble::every_preset_test
