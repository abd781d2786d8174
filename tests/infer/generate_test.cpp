#include "infer/generate.h"

#include "eval/small_model.h"
#include "formats/model_file.h"
#include "formats/safetensors.h"
#include "infer/plain_sample.h"
#include "support/golden.h"
#include "tokenizer/tokenizer_json.h"

namespace thimble {
namespace {

class Generate : public testing::Test {
 protected:
  Context context_;
  std::unique_ptr<Tokenizer> tokenizer_ = load_tokenizer("bytes");
  std::unique_ptr<Model> model_ = small_model(context_, tokenizer_->vocab_size(), 96, "llama");
  Batcher batcher_{*model_, tokenizer_.get()};
};

TEST_F(Generate, TextDependsOnTheSeed) {
  Request request = text_request(*tokenizer_, "hello");
  request.sampling = {.temperature = 1, .seed = 5};
  request.max_tokens = 20;
  const Sample a = generate(batcher_, request).at(0), b = generate(batcher_, request).at(0);
  EXPECT_EQ(ids_of(a.tokens), ids_of(b.tokens));
  EXPECT_EQ(a.text, b.text);
  request.sampling.seed = 6;
  EXPECT_NE(ids_of(generate(batcher_, request).at(0).tokens), ids_of(a.tokens));
}

TEST_F(Generate, EndsAtAStopIdOrAFullContextAndReportsWhich) {
  bool stopped = false, full = false;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    Request request = text_request(*tokenizer_, "hello");
    request.sampling = {.temperature = 1, .seed = seed};
    request.max_tokens = 100000;
    const Sample sample = generate(batcher_, request).at(0);
    const bool stop = sample.finish == FinishReason::stop;
    EXPECT_TRUE(stop || sample.tokens.size() == 96 - 6 + 1)
        << "6 prompt tokens; the last token is beyond the context";
    (stop ? stopped : full) = true;
  }
  EXPECT_TRUE(full);
  EXPECT_TRUE(stopped) << "about one in 257 tokens is bos";
}

TEST_F(Generate, ShownTextEqualsReturnedText) {
  Request request = text_request(*tokenizer_, "hello");
  request.sampling = {.temperature = 1};
  request.samples = 3;
  std::vector<std::string> shown(3);
  int ends = 0;
  const auto samples = generate(batcher_, request, [&](const Event& event) {
    shown[static_cast<std::size_t>(event.sample)] += event.text;
    ends += event.finish.has_value();
  });
  EXPECT_EQ(ends, 3);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(samples[i].text, shown[i]);
}

TEST_F(Generate, APromptLongerThanTheContextIsRejectedUnlessTheRequestSlides) {
  EXPECT_THROW(generate(batcher_, text_request(*tokenizer_, std::string(96, 'x'))), Error);
}

TEST_F(Generate, ASlidingWindowKeepsBosAndTheNewestTokens) {
  std::vector<TokenId> tokens = {7, 1, 2, 3, 4, 5, 6, 8, 9};
  EXPECT_EQ(slide_window(tokens, 8, 7), 3) << "a quarter of 8 is free afterwards";
  EXPECT_EQ(tokens, (std::vector<TokenId>{7, 4, 5, 6, 8, 9}));
  EXPECT_EQ(slide_window(tokens, 8, 7), 0);
  tokens = {1, 2, 3, 4, 5};
  EXPECT_EQ(slide_window(tokens, 4, 7), 2) << "no bos to keep";
  EXPECT_EQ(tokens, (std::vector<TokenId>{3, 4, 5}));
  for (const std::int64_t context : {1, 2}) {
    tokens = {7, 1, 2};
    EXPECT_EQ(slide_window(tokens, context, 7), 2);
    EXPECT_EQ(tokens, std::vector<TokenId>{2});
  }
}

TEST_F(Generate, ContinuesPastTheContextIfTheRequestSlides) {
  for (const std::size_t prompt : {3, 95, 96, 250}) {
    Request request = text_request(*tokenizer_, std::string(prompt, 'x'));
    request.sampling = {.temperature = 1, .repetition_penalty = 1.2f, .seed = 11};
    request.max_tokens = 150;
    request.stop_ids = {};
    request.slides = true;
    const Sample sample = generate(batcher_, request).at(0);
    EXPECT_EQ(sample.finish, FinishReason::length);
    const Sample plain = plain_sample(*model_, *tokenizer_, request);
    EXPECT_EQ(ids_of(sample.tokens), ids_of(plain.tokens)) << prompt;
    EXPECT_EQ(sample.usage.dropped_tokens, plain.usage.dropped_tokens) << prompt;
    const auto all = static_cast<std::int64_t>(request.prompt.size() + sample.tokens.size());
    EXPECT_LE(all - sample.usage.dropped_tokens, 97);
    EXPECT_GE(all - sample.usage.dropped_tokens, 72) << "three quarters of the context remain";
  }
}

// A repeated token makes the window after a slide equal to the one before.
TEST_F(Generate, SlidesOverARepeatedToken) {
  Request request = text_request(*tokenizer_, "xxxx");
  request.sampling = {.temperature = 0, .logit_bias = {{'x' + 1, 100}}};
  request.max_tokens = 200;
  request.slides = true;
  EXPECT_EQ(generate(batcher_, request).at(0).text, std::string(200, 'x'));
}

TEST_F(Generate, SamplesThatSlideDoNotAffectEachOther) {
  Batcher wide(*model_, tokenizer_.get(), {.slots = 2});
  Request request = text_request(*tokenizer_, std::string(80, 'y'));
  request.sampling = {.temperature = 1, .seed = 4};
  request.samples = 3;
  request.max_tokens = 60;
  request.stop_ids = {};
  request.slides = true;
  const std::vector<Sample> together = generate(wide, request);
  request.samples = 1;
  for (const Sample& sample : together) {
    EXPECT_EQ(ids_of(generate(batcher_, request).at(0).tokens), ids_of(sample.tokens));
    ++request.sampling.seed;
  }
}

TEST_F(Generate, TextlessIdsAreTheSpecialTokensThatDoNotEndAText) {
  const auto chat = load_tokenizer("bytes:chat");
  EXPECT_EQ(textless_ids(*chat, end_ids(*chat)), (std::vector<TokenId>{1, 2, 4}))
      << "<bos> and <end_turn> end";
  EXPECT_EQ(textless_ids(*tokenizer_, {}), std::vector<TokenId>{0});
}

TEST_F(Generate, TextRequestPrependsBosAndStopsAtTheEndOfText) {
  const Request request = text_request(*tokenizer_, "a"), from_start = text_request(*tokenizer_, "");
  EXPECT_EQ(request.prompt, (std::vector<TokenId>{0, 'a' + 1}));
  EXPECT_EQ(request.stop_ids, std::vector<TokenId>{0});
  EXPECT_FALSE(request.starts_text) << "the prompt begins the text";
  EXPECT_TRUE(from_start.starts_text);
}

TEST_F(Generate, BosIsAddedIfTheTokenizerAddsItOrThePromptIsEmpty) {
  const auto plain = make_bytes_tokenizer({});
  plain->prefer({.bos = 7, .eos = {}, .unk = {}, .pad = {}});
  ASSERT_FALSE(plain->adds_bos());
  EXPECT_EQ(text_request(*plain, "a").prompt, std::vector<TokenId>{'a'});
  EXPECT_EQ(text_request(*plain, "").prompt, std::vector<TokenId>{7});
  plain->texts_begin_with_bos();  // as for models trained by thimble
  EXPECT_EQ(text_request(*plain, "a").prompt, (std::vector<TokenId>{7, 'a'}));
}

TEST_F(Generate, TheBatcherIsUsableAfterAnException) {
  const Request request = text_request(*tokenizer_, "hello");
  const auto nobody_listens = [](const Event&) { throw std::runtime_error("the terminal is gone"); };
  EXPECT_THROW(generate(batcher_, request, nobody_listens), std::runtime_error);
  EXPECT_FALSE(batcher_.busy());
  EXPECT_NO_THROW(generate(batcher_, request));
}

// Folders written by Transformers, with its greedy text.
class TransformersGreedy : public testing::TestWithParam<const char*> {};

TEST_P(TransformersGreedy, GreedyTextIsReproduced) {
  const std::filesystem::path folder = golden_path(std::string("hf/") + GetParam());
  const Context context;
  Model model = make_model(open_model(folder), context);
  std::vector<std::int64_t> wide(32);
  SafetensorsFile::open(folder / "reference.safetensors").read_i64("greedy", wide);
  const std::vector<TokenId> greedy(wide.begin(), wide.end());
  constexpr std::ptrdiff_t kPrompt = 8;
  const Request request{.prompt = {greedy.begin(), greedy.begin() + kPrompt},
                        .sampling = {.temperature = 0},
                        .samples = 3,
                        .max_tokens = 32 - kPrompt};
  Batcher batcher(model, nullptr, {.slots = 2});
  for (const Sample& sample : generate(batcher, request))
    EXPECT_EQ(ids_of(sample.tokens), std::vector<TokenId>(greedy.begin() + kPrompt, greedy.end()));
}

INSTANTIATE_TEST_SUITE_P(Generate, TransformersGreedy, testing::Values("llama_tied", "qwen2"));

TEST_F(Generate, GenerateTokensGivesTheTokensOfTheBatcher) {
  Request request = text_request(*tokenizer_, "hello");
  request.sampling = {.temperature = 1, .seed = 3};
  request.max_tokens = 20;
  request.stop_ids = {};
  std::vector<TokenId> ids;
  Sampler sampler(request.sampling, tokenizer_->vocab_size());
  generate_tokens(*model_, request.prompt, [&](std::span<const float> logits) -> std::optional<TokenId> {
    ids.push_back(sampler.sample(logits));
    return ids.size() < 20 ? std::optional(ids.back()) : std::nullopt;
  });
  EXPECT_EQ(ids, ids_of(generate(batcher_, request).at(0).tokens));
}

TEST_F(Generate, GenerateTokensStopsAtAFullContext) {
  std::size_t chosen = 0;
  const auto next = [&](std::span<const float>) { return ++chosen, std::optional<TokenId>(65); };
  generate_tokens(*model_, {66, 67}, next);
  EXPECT_EQ(chosen, 96u - 2 + 1) << "the last token is beyond the context";
  EXPECT_THROW(generate_tokens(*model_, {}, next), Error);
  EXPECT_THROW(generate_tokens(*model_, std::vector<TokenId>(97, 65), next), Error);
}

}  // namespace
}  // namespace thimble
