#include "infer/generate.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/error.h"
#include "model/config_builder.h"

namespace thimble {
namespace {

std::unique_ptr<Model> make_small(const Context& context, const char* preset, std::int64_t vocab_size) {
  ConfigBuilder settings;
  settings.preset(preset);
  for (const char* setting : {"context=96", "layers=3", "dim=32", "heads=4", "kv_heads=2", "head_dim=8",
                              "rope_dims=8", "mlp_hidden=48", "batch_tokens=96"})
    settings.set(setting);
  settings.set(fmt::format("vocab_size={}", vocab_size));
  auto model = std::make_unique<Model>(settings.resolve().model, context);
  initialise(model->params(), 9, model->weights());
  // Golf's output matrices start at 0: give every weight something to say.
  std::vector<float> noise(model->weights().size());
  fill_normal(noise, 0, 0.2f, 17, 0);
  std::ranges::transform(model->weights(), noise, model->weights().begin(), std::plus());
  model->weights_changed();
  return model;
}

// The next token when the whole prefix is computed again.
std::int32_t recomputed(Model& model, const std::vector<std::int32_t>& tokens) {
  const auto T = static_cast<std::int64_t>(tokens.size());
  const auto logits = model.score(grid_rows(model.config(), T, tokens), true).logits;
  const auto last = logits.end() - model.config().vocab_size;
  return static_cast<std::int32_t>(std::max_element(last, logits.end()) - last);
}

class EveryFamily : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Presets, EveryFamily,
                         testing::Values("llama", "qwen3", "golf", "golf-plus", "microgpt"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase(name, '-');
                           return name;
                         });

TEST_P(EveryFamily, GreedyThroughTheCacheEqualsRecomputingThePrefix) {
  const Context context;
  auto model = make_small(context, GetParam(), 60);
  KvCache cache(model->config(), 1);
  Sequence sequence(*model, cache, 0);
  Sampler greedy({.temperature = 0});
  std::vector<std::int32_t> tokens;
  for (int i = 0; i < 70; ++i) tokens.push_back(i * 7 % 60);  // more than one block of the prompt
  auto logits = sequence.append(tokens);
  while (sequence.room() > 0) {
    const std::int32_t next = greedy.sample(logits, 60);
    ASSERT_EQ(next, recomputed(*model, tokens)) << "after " << tokens.size() << " tokens";
    tokens.push_back(next);
    logits = sequence.append(std::span(&next, 1));
  }
}

TEST(Generate, SameSeedSameTextAndLengthIsSaid) {
  const Context context;
  const auto tokenizer = load_tokenizer("bytes");
  auto model = make_small(context, "llama", tokenizer->vocab_size());
  const GenerateOptions options{.sampler = {.temperature = 1, .seed = 5}, .max_tokens = 20};
  const Sample a = generate(*model, *tokenizer, "hello", options),
               b = generate(*model, *tokenizer, "hello", options);
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_EQ(a.text, b.text);
}

TEST(Generate, EndsWithTheDocumentOrTheContextAndSaysWhich) {
  const Context context;
  const auto tokenizer = load_tokenizer("bytes");
  auto model = make_small(context, "llama", tokenizer->vocab_size());
  bool stopped = false, full = false;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const Sample sample = generate(*model, *tokenizer, "hello",
                                   {.sampler = {.temperature = 1, .seed = seed}, .max_tokens = 100000});
    const bool stop = sample.finish_reason == "stop";
    EXPECT_TRUE(stop || sample.tokens.size() == 96 - 6 + 1)
        << "6 tokens of prompt; the last token needs no place";
    (stop ? stopped : full) = true;
  }
  EXPECT_TRUE(full);
  EXPECT_TRUE(stopped) << "one in 257 tokens is bos";
}

TEST(Generate, APromptLongerThanTheContextIsRefused) {
  const Context context;
  const auto tokenizer = load_tokenizer("bytes");
  auto model = make_small(context, "llama", tokenizer->vocab_size());
  EXPECT_THROW(generate(*model, *tokenizer, std::string(96, 'x'), {}), Error);
}

TEST(Sampler, FollowsTheDistribution) {
  const std::vector<float> logits = {std::log(0.5f), std::log(0.3f), std::log(0.2f), 10.0f};
  Sampler sampler({.temperature = 1, .seed = 3});
  std::map<std::int32_t, int> count;
  constexpr int kDraws = 20000;
  for (int i = 0; i < kDraws; ++i) ++count[sampler.sample(logits, 3)];
  EXPECT_EQ(count.size(), 3u) << "id 3 is beyond the tokenizer";
  EXPECT_NEAR(count[0], 0.5 * kDraws, 4 * std::sqrt(0.25 * kDraws));
  EXPECT_NEAR(count[2], 0.2 * kDraws, 4 * std::sqrt(0.16 * kDraws));
}

TEST(Sampler, TopKAndTopPCutTheTail) {
  const std::vector<float> logits = {std::log(0.5f), std::log(0.3f), std::log(0.2f)};
  Sampler top_k({.temperature = 1, .top_k = 2, .seed = 1}),
      top_p({.temperature = 1, .top_p = 0.4f, .seed = 1});
  for (int i = 0; i < 200; ++i) {
    EXPECT_NE(top_k.sample(logits, 3), 2);
    EXPECT_EQ(top_p.sample(logits, 3), 0);
  }
}

TEST(Sampler, RefusesNumbersThatAreNone) {
  Sampler sampler({});
  EXPECT_THROW(sampler.sample(std::vector<float>{0.0f, NAN}, 2), Error);
}

}  // namespace
}  // namespace thimble
