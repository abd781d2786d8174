// Compares sliding windows and golf's windows with slow, simple implementations.
#include <algorithm>
#include <cmath>
#include <map>

#include "base/error.h"
#include "eval/score.h"
#include "eval/small_model.h"

namespace thimble::score_sliding_test {
namespace {

constexpr std::int64_t kContext = 80;

// Texts of various lengths, some longer than the context, and a model that depends on the whole
// context.
struct Texts {
  Context context;
  std::unique_ptr<Tokenizer> tokenizer = load_tokenizer("bytes");
  std::int32_t bos = *tokenizer->special().bos;
  std::unique_ptr<Model> model;
  std::vector<std::int32_t> tokens;
  std::map<std::pair<std::size_t, std::size_t>, double> known;

  explicit Texts(const char* preset = "golf-plus")
      : model(small_model(context, tokenizer->vocab_size(), kContext, preset)) {
    for (int length : {3, 170, 80, 79, 1, 33}) {
      tokens.push_back(bos);
      for (int i = 0; i < length; ++i) tokens.push_back(5 + (i * i + length) % 250);
    }
  }

  Score score(const ScoreOptions& options) {
    const ByteTable bytes(*tokenizer, static_cast<TokenId>(model->config().vocab_size));
    const TokenSet set(tokens, TokenMarks::of(*tokenizer, DataKind::text, LossOn::assistant));
    return score_set(*model, bytes, set, options, ProgressOutput::nowhere());
  }

  std::int32_t target(std::size_t i) const { return i + 1 < tokens.size() ? tokens[i + 1] : bos; }

  // The nats of the token after i, given only the tokens [begin, i].
  double nats(std::size_t begin, std::size_t i) {
    auto [entry, is_new] = known.try_emplace({begin, i});
    if (is_new) {
      const std::vector<std::int32_t> input(tokens.begin() + static_cast<std::ptrdiff_t>(begin),
                                            tokens.begin() + static_cast<std::ptrdiff_t>(i + 1));
      std::vector<std::int32_t> targets(input.size(), -1);
      targets.back() = target(i);
      entry->second =
          model->score(grid_rows(model->config(), static_cast<std::int64_t>(input.size()), input, targets))
              .nats.back();
    }
    return entry->second;
  }

  // The start of the context of token i: that of the first window, at a multiple of the stride,
  // that contains it.
  static std::size_t window_of(std::size_t i, std::size_t stride) {
    std::size_t begin = 0;
    while (begin + kContext <= i) begin += stride;
    return begin;
  }
};

class EveryStride : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Strides, EveryStride, testing::Values(1, 7, 64, static_cast<int>(kContext)));

TEST_P(EveryStride, ForIsolatedDocumentsEqualsOneTokenAtATime) {
  Texts t;
  const auto stride = static_cast<std::size_t>(GetParam());
  double nats = 0;
  std::size_t start = 0;
  for (std::size_t i = 0; i < t.tokens.size(); ++i) {
    if (t.tokens[i] == t.bos) start = i;
    nats += t.nats(start + Texts::window_of(i - start, stride), i);
  }
  const Score score = t.score({.stride = GetParam()});
  const auto count = static_cast<double>(t.tokens.size());
  EXPECT_EQ(score.tokens, static_cast<std::int64_t>(t.tokens.size()));
  EXPECT_EQ(score.bytes, t.tokens.size() - 6) << "a bos has nats but no bytes";
  EXPECT_NEAR(score.nats / count, nats / count, 1e-6);
}

TEST_P(EveryStride, ForAStreamEqualsOneTokenAtATime) {
  Texts t;
  const auto stride = static_cast<std::size_t>(GetParam());
  const std::size_t usable = (t.tokens.size() - 1) / kContext * kContext;
  double nats = 0;
  for (std::size_t i = 0; i < usable; ++i) nats += t.nats(Texts::window_of(i, stride), i);
  const Score score = t.score({.stride = GetParam(), .isolate = false});
  EXPECT_EQ(score.tokens, static_cast<std::int64_t>(usable));
  EXPECT_NEAR(score.loss(), nats / static_cast<double>(usable), 1e-6);
}

// eval_val of train_gpt.py, line by line: x = tokens[:-1], y = tokens[1:] in complete rows, without
// isolating documents.
TEST(GolfWindows, EqualThePublishedScript) {
  Texts t("golf");
  const std::size_t usable = (t.tokens.size() - 1) / kContext * kContext;
  double nats = 0;
  std::uint64_t bytes = 0;
  for (std::size_t row = 0; row < usable; row += kContext) {
    const auto at = t.tokens.begin() + static_cast<std::ptrdiff_t>(row);
    const std::vector<std::int32_t> x(at, at + kContext), y(at + 1, at + kContext + 1);
    for (float value : t.model->score(grid_rows(t.model->config(), kContext, x, y)).nats) nats += value;
    bytes += static_cast<std::uint64_t>(std::ranges::count_if(y, [&](auto id) { return id != t.bos; }));
  }
  ASSERT_FALSE(t.model->config().isolate) << "the preset does not isolate documents, like the script";
  const Score score = t.score({.isolate = t.model->config().isolate});
  EXPECT_EQ(score.tokens, static_cast<std::int64_t>(usable));
  EXPECT_EQ(score.bytes, bytes);
  EXPECT_NEAR(score.loss(), nats / static_cast<double>(usable), 1e-6);
  EXPECT_NE(score.tokens, t.score({}).tokens) << "with isolation the tail is scored too";
}

TEST(GolfWindows, ASetShorterThanAWindowIsOneWindow) {
  Texts t;
  t.tokens.resize(30);
  EXPECT_EQ(t.score({.isolate = false}).tokens, 29);
  t.tokens.resize(1);
  EXPECT_THROW(t.score({.isolate = false}), Error);
}

TEST(Sliding, DoesNotDependOnTheBatchSize) {
  Texts t;
  for (const bool isolate : {true, false})
    for (const std::int64_t stride : {16, 80}) {
      const Score one = t.score({.stride = stride, .isolate = isolate, .tokens_at_a_time = 1});
      for (const std::int64_t tokens : {200, 1000, 100000}) {
        const Score many = t.score({.stride = stride, .isolate = isolate, .tokens_at_a_time = tokens});
        EXPECT_EQ(many.tokens, one.tokens);
        EXPECT_EQ(many.bytes, one.bytes);
        EXPECT_NEAR(many.bits_per_byte(), one.bits_per_byte(), 1e-6) << tokens << " tokens at a time";
      }
    }
}

TEST(Sliding, OverlappingWindowsDoNotMixDocuments) {
  Texts t;
  const Score before = t.score({.stride = 8});
  // Changing the first document must not change the nats of the others.
  const double first = t.nats(0, 0) + t.nats(0, 1) + t.nats(0, 2) + t.nats(0, 3);
  t.tokens[1] = t.tokens[2] = 9;
  t.known.clear();
  const double other = t.nats(0, 0) + t.nats(0, 1) + t.nats(0, 2) + t.nats(0, 3);
  ASSERT_GT(std::abs(first - other), 1e-3);
  EXPECT_NEAR(t.score({.stride = 8}).nats - before.nats, other - first, 1e-4);
}

TEST(Sliding, TheLimitSelectsTheFirstTokens) {
  Texts t;
  for (const std::int64_t limit : {1, 50, 100}) {
    double nats = 0;
    std::size_t start = 0;
    for (std::size_t i = 0; i < static_cast<std::size_t>(limit); ++i) {
      if (t.tokens[i] == t.bos) start = i;
      nats += t.nats(start + Texts::window_of(i - start, 8), i);
    }
    const Score score = t.score({.stride = 8, .val_tokens = limit});
    EXPECT_EQ(score.tokens, limit);
    EXPECT_NEAR(score.nats, nats, 1e-4) << limit;
  }
}

TEST(Sliding, RejectsAStrideLongerThanTheContext) {
  Texts t;
  EXPECT_THROW(t.score({.context = 16, .stride = 17}), Error);
  EXPECT_THROW(t.score({.context = kContext + 1}), Error);
}

}  // namespace
}  // namespace thimble::score_sliding_test
