// Compares each filter with the distribution that its definition gives, computed by a full sort.
#include "infer/sampler.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <set>

#include "support/message_of.h"

namespace thimble {
namespace {

constexpr int kDraws = 40000;

const std::vector<float> kLogits = {1.2f, -0.7f, 2.1f, 0.0f, 2.1f, -3.0f, 0.9f, 1.7f, -1.1f, 0.9f};

// Steps 5 to 8 of sampler.h, implemented literally.
std::vector<double> exact_distribution(std::vector<float> logits, const SamplingOptions& options) {
  std::vector<std::size_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return logits[a] > logits[b]; });
  std::vector<double> p(logits.size());
  for (std::size_t i = 0; i < p.size(); ++i)
    p[i] = std::exp(static_cast<double>(logits[i]) / static_cast<double>(options.temperature));
  const auto normalize = [&] {
    const double total = std::accumulate(p.begin(), p.end(), 0.0);
    for (double& x : p) x /= total;
  };
  if (options.top_k > 0)
    for (std::size_t rank = static_cast<std::size_t>(options.top_k); rank < p.size(); ++rank)
      p[order[rank]] = 0;
  normalize();
  double reached = 0;
  for (const std::size_t i : order) {
    if (reached >= static_cast<double>(options.top_p)) p[i] = 0;
    reached += p[i];
  }
  normalize();
  const double largest = *std::ranges::max_element(p);
  for (double& x : p)
    if (x < static_cast<double>(options.min_p) * largest) x = 0;
  normalize();
  return p;
}

// The value that chi-square with `freedom` degrees of freedom exceeds with probability 1e-6
// (Wilson-Hilferty approximation).
double critical(double freedom) {
  constexpr double kDeviations = 4.753;
  const double v = 2 / (9 * freedom);
  return freedom * std::pow(1 - v + kDeviations * std::sqrt(v), 3);
}

void expect_distribution(const std::function<TokenId()>& draw, const std::vector<double>& expected) {
  std::vector<int> count(expected.size());
  for (int i = 0; i < kDraws; ++i) ++count.at(static_cast<std::size_t>(draw()));
  double chi_square = 0, possible = 0;
  for (std::size_t i = 0; i < count.size(); ++i) {
    if (expected[i] == 0) {
      EXPECT_EQ(count[i], 0) << "id " << i << " is filtered out";
      continue;
    }
    const double expected_count = expected[i] * kDraws;
    chi_square += (count[i] - expected_count) * (count[i] - expected_count) / expected_count;
    ++possible;
  }
  ASSERT_GT(possible, 1);
  EXPECT_LT(chi_square, critical(possible - 1));
}

struct Case {
  const char* name;
  SamplingOptions options;
};

class EveryFilter : public testing::TestWithParam<Case> {};

TEST_P(EveryFilter, SamplesFollowTheExactDistribution) {
  SamplingOptions options = GetParam().options;
  options.seed = 11;
  Sampler sampler(options, static_cast<std::int64_t>(kLogits.size()));
  expect_distribution([&] { return sampler.sample(kLogits); }, exact_distribution(kLogits, options));
}

INSTANTIATE_TEST_SUITE_P(
    Sampler, EveryFilter,
    testing::Values(Case{"temperature_one", {.temperature = 1}}, Case{"cold", {.temperature = 0.4f}},
                    Case{"hot", {.temperature = 3}}, Case{"top_k", {.temperature = 1, .top_k = 4}},
                    Case{"top_k_cuts_a_tie", {.temperature = 1, .top_k = 5}},
                    Case{"top_p", {.temperature = 1, .top_p = 0.6f}},
                    Case{"min_p", {.temperature = 1, .min_p = 0.25f}},
                    Case{"top_k_then_top_p", {.temperature = 0.8f, .top_k = 5, .top_p = 0.8f}},
                    Case{"all_of_them", {.temperature = 1.3f, .top_k = 8, .top_p = 0.9f, .min_p = 0.15f}}),
    [](const auto& info) { return info.param.name; });

// More ids than top-p sorts in its first pass.
TEST(Sampler, TopPOfAFlatDistributionKeepsTheCorrectNumber) {
  constexpr int kIds = 1000;
  std::vector<float> logits(kIds);
  for (int i = 0; i < kIds; ++i)
    logits[static_cast<std::size_t>(i)] = static_cast<float>(i * 7 % kIds) * 1e-4f;
  const SamplingOptions options{.temperature = 1, .top_p = 0.45f, .seed = 2};
  const auto expected = exact_distribution(logits, options);
  Sampler sampler(options, kIds);
  expect_distribution([&] { return sampler.sample(logits); }, expected);
}

// Checks the distribution after a prompt and generated tokens, with a new sampler and seed per
// draw.
void expect_after_history(const SamplingOptions& options, std::span<const TokenId> prompt,
                          std::span<const TokenId> generated, const std::vector<float>& changed) {
  std::uint64_t seed = 0;
  const auto draw = [&] {
    SamplingOptions with_seed = options;
    with_seed.seed = ++seed;
    Sampler sampler(with_seed, static_cast<std::int64_t>(kLogits.size()), prompt);
    for (const TokenId id : generated) {
      std::vector<float> certain(kLogits.size(), -1e6f);
      certain[static_cast<std::size_t>(id)] = 1e6f;
      EXPECT_EQ(sampler.sample(certain), id);
    }
    return sampler.sample(kLogits);
  };
  expect_distribution(draw, exact_distribution(changed, options));
}

TEST(Sampler, RepetitionPenaltyAppliesToItsWindow) {
  std::vector<float> changed = kLogits;
  changed[2] = 2.1f / 1.5f,
  changed[1] = -0.7f * 1.5f;  // once each, although 2 occurs twice; 7 is outside the window
  expect_after_history({.temperature = 1, .repetition_penalty = 1.5f, .repeat_last_n = 3}, std::vector{7, 2},
                       std::vector{1, 2}, changed);
  changed[7] = 1.7f / 1.5f;
  expect_after_history({.temperature = 1, .repetition_penalty = 1.5f, .repeat_last_n = -1}, std::vector{7, 2},
                       std::vector{1, 2}, changed);
}

TEST(Sampler, FrequencyAndPresenceCountGeneratedTokensOnly) {
  std::vector<float> changed = kLogits;
  changed[2] -= 2 * 0.4f + 0.3f, changed[7] -= 0.4f + 0.3f;
  expect_after_history({.temperature = 1, .frequency_penalty = 0.4f, .presence_penalty = 0.3f},
                       std::vector{6, 6, 6}, std::vector{2, 7, 2}, changed);
}

TEST(Sampler, BiasIsAddedAndSuppressedIdsAreNeverSampled) {
  std::vector<float> changed = kLogits;
  changed[3] += 2.5f;
  changed[2] = changed[8] = -INFINITY;
  const SamplingOptions options{.temperature = 1, .logit_bias = {{3, 2.5f}}, .suppressed = {2}, .seed = 4};
  Sampler sampler(options, static_cast<std::int64_t>(kLogits.size()));
  const std::vector<TokenId> banned = {8};
  expect_distribution([&] { return sampler.sample(kLogits, banned); }, exact_distribution(changed, options));
}

TEST(Sampler, GreedyTakesTheLargestLogitAndTheSmallerIdInATie) {
  Sampler greedy({.temperature = 0}, 10);
  EXPECT_EQ(greedy.sample(kLogits), 2) << "2 and 4 are equal";
  EXPECT_EQ(greedy.sample(kLogits, std::vector{2}), 4);
  Sampler top_one({.temperature = 1, .top_k = 1}, 10);
  for (int i = 0; i < 50; ++i) EXPECT_EQ(top_one.sample(kLogits), 2);
  Sampler least_p({.temperature = 1, .top_p = 0}, 10);
  for (int i = 0; i < 50; ++i) EXPECT_EQ(least_p.sample(kLogits), 2);
}

TEST(Sampler, PenaltiesApplyToGreedySampling) {
  Sampler greedy({.temperature = 0, .presence_penalty = 5}, 3);
  const std::vector<float> logits = {1, 2, 3};
  EXPECT_EQ(greedy.sample(logits), 2);
  EXPECT_EQ(greedy.sample(logits), 1);
  EXPECT_EQ(greedy.sample(logits), 0);
  EXPECT_EQ(greedy.sample(logits), 2);
}

TEST(Sampler, IdsBeyondTheTokenizerAreNeverSampled) {
  Sampler greedy({.temperature = 0}, 2), hot({.temperature = 100}, 2);
  const std::vector<float> logits = {0, 1, 50, 60};
  EXPECT_EQ(greedy.sample(logits), 1);
  for (int i = 0; i < 500; ++i) EXPECT_LT(hot.sample(logits), 2);
}

TEST(Sampler, TheNthDrawDependsOnlyOnSeedAndN) {
  Sampler one({.temperature = 1, .seed = 7}, 10), other({.temperature = 1, .seed = 7}, 10);
  const std::vector<float> certain = {0, 0, 0, 0, 0, 0, 0, 0, 0, 90};
  std::set<TokenId> seen;
  for (int i = 0; i < 100; ++i) {
    // The logits of earlier draws make no difference.
    if (i % 2 == 0)
      one.sample(certain), other.sample(kLogits);
    else {
      const TokenId id = one.sample(kLogits);
      EXPECT_EQ(id, other.sample(kLogits));
      seen.insert(id);
    }
  }
  EXPECT_GT(seen.size(), 4u);
}

TEST(Sampler, NonFiniteLogitsAndAnEmptyVocabularyAreErrors) {
  Sampler sampler({}, 2);
  EXPECT_THROW(sampler.sample(std::vector<float>{0, NAN}), Error);
  EXPECT_THROW(sampler.sample(std::vector<float>{INFINITY, 0}), Error);
  EXPECT_NO_THROW(sampler.sample(std::vector<float>{0, 0, NAN})) << "beyond the tokenizer";
  Sampler none({.suppressed = {0, 1}}, 2);
  EXPECT_EQ(message_of([&] { none.sample(std::vector<float>{1, 2}); }), "every token is suppressed");
}

TEST(Sampler, OutOfRangeOptionsAreReportedByName) {
  const auto message = [](const SamplingOptions& options) {
    return message_of([&] { check_sampling(options, 100); });
  };
  EXPECT_EQ(message({.temperature = -0.5f}), "temperature must be >= 0, got -0.5");
  EXPECT_EQ(message({.temperature = NAN}), "temperature must be >= 0, got nan");
  EXPECT_EQ(message({.top_k = -1}), "top_k must be >= 0, got -1");
  EXPECT_EQ(message({.top_p = 1.5f}), "top_p must be <= 1, got 1.5");
  EXPECT_EQ(message({.min_p = -1}), "min_p must be >= 0, got -1");
  EXPECT_EQ(message({.repetition_penalty = 0}), "repetition_penalty must be >= 0.01, got 0");
  EXPECT_EQ(message({.repeat_last_n = -2}), "repeat_last_n must be >= -1, got -2");
  EXPECT_EQ(message({.frequency_penalty = 1001}), "frequency_penalty must be <= 1000, got 1001");
  EXPECT_EQ(message({.logit_bias = {{100, 1.0f}}}), "logit_bias: the vocabulary has 100 tokens, got id 100");
  EXPECT_EQ(message({.logit_bias = {{1, 101.0f}}}), "logit_bias must be <= 100, got 101");
  EXPECT_EQ(message({.suppressed = {-1}}), "suppressed: the vocabulary has 100 tokens, got id -1");
  EXPECT_EQ(message({}), "nothing was thrown");
}

}  // namespace
}  // namespace thimble
