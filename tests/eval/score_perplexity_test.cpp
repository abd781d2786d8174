#include "eval/score.h"

#include <cmath>

#include "base/error.h"
#include "base/json.h"
#include "eval/small_model.h"

namespace thimble::score_perplexity_test {
namespace {

struct Fixture {
  Context context;
  std::unique_ptr<Tokenizer> tokenizer = load_tokenizer("bytes");
  std::unique_ptr<Model> model = small_model(context, tokenizer->vocab_size(), 32);
  std::vector<std::int32_t> text;
  bool with_bos = true;

  Fixture() {
    for (int i = 0; i < 150; ++i) text.push_back(5 + i * i % 200);
  }
  // Like the tokenizer of a GGUF with add_bos_token = false.
  void remove_bos() {
    Json file = parse_json(tokenizer->serialized(), "bytes");
    tokenizer = load_tokenizer_bytes(file.set("post_processor", nullptr).dump(), "tokenizer.json");
    with_bos = false;
  }
  Perplexity measure(const PerplexityOptions& options) {
    return perplexity(*model, *tokenizer, text, options, ProgressOutput::nowhere());
  }
};

// perplexity() of llama.cpp: logits of every position, log-softmax in double, and the sums of the
// nats and of their squares.
struct Slow {
  double ppl = 0, error = 0;
  std::int64_t count = 0;
};

Slow slow_perplexity(Fixture& f, std::size_t n_ctx) {
  const std::int32_t bos = *f.tokenizer->special().bos;
  std::vector<std::int32_t> tokens = f.text;
  if (f.with_bos) tokens.insert(tokens.begin(), bos);
  const std::size_t n_chunk = tokens.size() / n_ctx, first = n_ctx / 2;
  const auto V = static_cast<std::size_t>(f.model->config().vocab_size);
  double nll = 0, nll2 = 0;
  Slow slow;
  for (std::size_t i = 0; i < n_chunk; ++i) {
    const std::size_t start = i * n_ctx;
    std::vector<std::int32_t> batch(tokens.begin() + static_cast<std::ptrdiff_t>(start),
                                    tokens.begin() + static_cast<std::ptrdiff_t>(start + n_ctx));
    if (f.with_bos) batch[0] = bos;
    const auto logits =
        f.model->score(grid_rows(f.model->config(), static_cast<std::int64_t>(n_ctx), batch), true).logits;
    for (std::size_t j = first; j < n_ctx - 1; ++j) {
      double sum = 0;
      for (std::size_t v = 0; v < V; ++v) sum += std::exp(static_cast<double>(logits[j * V + v]));
      const double v = std::log(sum) -
                       static_cast<double>(logits[j * V + static_cast<std::size_t>(tokens[start + j + 1])]);
      nll += v;
      nll2 += v * v;
      ++slow.count;
    }
  }
  const auto n = static_cast<double>(slow.count);
  nll /= n;
  nll2 = nll2 / n - nll * nll;
  slow.ppl = std::exp(nll);
  slow.error = std::sqrt(nll2 / (n - 1)) * slow.ppl;
  return slow;
}

TEST(Perplexity, EqualsLlamaCpps) {
  Fixture f;
  for (const std::int64_t n_ctx : {8, 15, 32}) {
    const Slow slow = slow_perplexity(f, static_cast<std::size_t>(n_ctx));
    for (const std::int64_t tokens_at_a_time : {0, 1}) {
      const Perplexity fast = f.measure({.context = n_ctx, .tokens_at_a_time = tokens_at_a_time});
      EXPECT_EQ(fast.score.tokens, slow.count);
      EXPECT_EQ(fast.chunks, 151 / n_ctx);
      EXPECT_EQ(fast.score.tokens, fast.chunks * (n_ctx - 1 - n_ctx / 2));
      EXPECT_EQ(fast.score.bytes, static_cast<std::uint64_t>(fast.score.tokens));
      EXPECT_NEAR(fast.value() / slow.ppl, 1, 1e-6) << n_ctx;
      EXPECT_NEAR(fast.standard_error() / slow.error, 1, 1e-5) << n_ctx;
    }
  }
}

TEST(Perplexity, AddsNoBosIfTheTokenizerAddsNone) {
  Fixture f;
  f.remove_bos();
  ASSERT_TRUE(f.tokenizer->special().bos);
  const Slow slow = slow_perplexity(f, 15);
  const Perplexity fast = f.measure({.context = 15});
  EXPECT_EQ(fast.chunks, 10) << "150 tokens and no bos";
  EXPECT_NEAR(fast.value() / slow.ppl, 1, 1e-6);
}

TEST(Perplexity, AModelWithNaNIsAnError) {
  Fixture f;
  f.model->weights()[5] = NAN;
  f.model->weights_changed();
  EXPECT_THROW(f.measure({}), Error);
}

TEST(Perplexity, UsesTheModelsContextIfItIsLessThan512) {
  Fixture f;
  EXPECT_EQ(f.measure({}).context, 32);
}

TEST(Perplexity, NeedsTwoChunks) {
  Fixture f;
  f.text.resize(62);
  EXPECT_THROW(f.measure({}), Error);
  f.text.resize(63, 7);  // with bos 64
  EXPECT_EQ(f.measure({}).chunks, 2);
}

TEST(Perplexity, LimitsTokensToCompleteChunks) {
  Fixture f;
  EXPECT_EQ(f.measure({.context = 8, .val_tokens = 20}).score.tokens, 18) << "3 of each chunk";
  EXPECT_EQ(f.measure({.context = 8, .val_tokens = 3}).chunks, 1);
  EXPECT_EQ(f.measure({.context = 8, .val_tokens = 1000}).chunks, 151 / 8);
  EXPECT_THROW(f.measure({.context = 8, .val_tokens = 2}), Error);
}

}  // namespace
}  // namespace thimble::score_perplexity_test
