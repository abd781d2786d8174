#include "eval/score.h"

#include <cmath>

#include "base/rng.h"
#include "model/config_builder.h"

namespace thimble {
namespace {

struct Fixture {
  Context context;
  std::unique_ptr<Tokenizer> tokenizer = load_tokenizer("bytes");
  std::unique_ptr<Model> model;
  std::vector<std::int32_t> tokens;

  Fixture() {
    ConfigBuilder settings;
    settings.preset("quick");
    for (const char* setting :
         {"context=16", "layers=1", "dim=32", "heads=2", "kv_heads=1", "head_dim=16", "rope_dims=16"})
      settings.set(setting);
    settings.set(fmt::format("vocab_size={}", tokenizer->vocab_size()));
    model = std::make_unique<Model>(settings.resolve().model, context);
    initialise(model->params(), 3, model->weights());
    model->weights_changed();
    tokens = {*tokenizer->special().bos};
    tokenizer->encode("The quick brown fox jumps over the lazy dog, twice, and then rests under a tree.",
                      tokens);
    tokens.push_back(*tokenizer->special().bos);
  }

  Score score(const ScoreOptions& options) {
    const ByteTable bytes(*tokenizer, static_cast<TokenId>(model->config().vocab_size));
    return score_tokens(*model, bytes, tokens, *tokenizer->special().bos, options, ProgressOutput::nowhere());
  }
};

TEST(Score, EveryTokenIsScoredOnceWhateverIsComputedAtATime) {
  Fixture f;
  const Score all = f.score({});
  EXPECT_EQ(all.tokens, static_cast<std::int64_t>(f.tokens.size()) - 1);
  EXPECT_EQ(all.bytes, f.tokens.size() - 2) << "the closing bos has no bytes";
  const Score few = f.score({.tokens_at_a_time = 16});
  EXPECT_EQ(few.tokens, all.tokens);
  EXPECT_NEAR(few.nats, all.nats, 1e-4);
  EXPECT_NEAR(all.bits_per_byte(), all.nats / std::log(2.0) / static_cast<double>(all.bytes), 1e-12);
}

TEST(Score, EqualsScoringWindowByWindow) {
  Fixture f;
  double nats = 0;
  for (std::size_t at = 0; at + 1 < f.tokens.size(); at += 16) {
    const std::size_t count = std::min<std::size_t>(16, f.tokens.size() - 1 - at);
    const std::span<const std::int32_t> window(f.tokens.data() + at, count + 1);
    for (float value : f.model
                           ->score(grid_rows(f.model->config(), static_cast<std::int64_t>(count),
                                             window.first(count), window.subspan(1)))
                           .nats)
      nats += value;
  }
  EXPECT_NEAR(f.score({}).nats, nats, 1e-4);
}

TEST(Score, StopsAtTheLimit) {
  Fixture f;
  EXPECT_EQ(f.score({.val_tokens = 10}).tokens, 10);
}

}  // namespace
}  // namespace thimble
