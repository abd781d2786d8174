#include "infer/batcher.h"

#include <cmath>
#include <limits>

#include "eval/small_model.h"
#include "infer/plain_sample.h"
#include "infer/request.h"
#include "infer/run_requests.h"
#include "model/random_model.h"
#include "support/message_of.h"

namespace thimble::batcher_test {
namespace {

constexpr std::int64_t kContext = 96;

class Batching : public testing::Test {
 protected:
  Context context_;
  std::unique_ptr<Tokenizer> tokenizer_ = load_tokenizer("bytes");
  std::unique_ptr<Model> model_ = small_model(context_, tokenizer_->vocab_size(), kContext, "llama");

  Request request(std::string_view prompt, float temperature = 1, std::uint64_t seed = 5) const {
    Request request = text_request(*tokenizer_, prompt);
    request.stop_ids.clear();
    request.sampling = {.temperature = temperature, .seed = seed};
    request.max_tokens = 20;
    return request;
  }
  Batcher batcher(std::int64_t slots) { return {*model_, tokenizer_.get(), {.slots = slots}}; }
};

TEST_F(Batching, SamplesOfOnePromptShareItsPrefixAndDiffer) {
  for (const std::size_t length : {3u, 70u}) {
    Request many = request(std::string(length, 'x'));
    many.samples = 5;
    Batcher four = batcher(4);
    const auto samples = generate(four, many);
    ASSERT_EQ(samples.size(), 5u);
    for (int i = 0; i < 5; ++i) {
      const Sample& sample = samples[static_cast<std::size_t>(i)];
      EXPECT_EQ(sample.usage.cached_tokens, i == 0 ? 0 : static_cast<std::int64_t>(length))
          << "all but the last token of bos and the prompt";
      EXPECT_EQ(ids_of(sample.tokens), ids_of(plain_sample(*model_, *tokenizer_, many, i).tokens));
    }
    EXPECT_NE(ids_of(samples[0].tokens), ids_of(samples[1].tokens));
  }
}

// Layers with a window keep a ring of 1,088 positions, so a prompt that shares only an early prefix
// with a slot is read from its start.
TEST_F(Batching, ModelsWithRingsReusePrefixesThatTheRingsStillHave) {
  Model model = random_model(
      small_config("llama", {"context=2500", "layers=2", "window=20", "global_every=2",
                             fmt::format("vocab_size={}", tokenizer_->vocab_size()), "batch_tokens=2500"}),
      context_);
  std::string text;
  for (int i = 0; i < 1500; ++i) text.push_back(static_cast<char>('a' + i * i % 23));
  Batcher two(model, tokenizer_.get(), {.slots = 2});
  const auto expect = [&](const Request& wanted, std::int64_t cached) {
    const Sample sample = generate(two, wanted).at(0);
    EXPECT_EQ(sample.usage.cached_tokens, cached);
    EXPECT_EQ(ids_of(sample.tokens), ids_of(plain_sample(model, *tokenizer_, wanted).tokens));
  };
  expect(request(text), 0);
  expect(request(text.substr(0, 1400) + "and more"), 1401);  // with bos
  expect(request(text.substr(0, 300) + "something else"), 0);
  // The context fills up, and the oldest tokens are dropped.
  Request slides = request(text + text.substr(0, 990));
  slides.slides = true;
  expect(slides, 1401);
  Request several = request(text.substr(0, 1300));
  several.samples = 2;
  const auto samples = generate(two, several);
  for (int i = 0; i < 2; ++i)
    EXPECT_EQ(ids_of(samples[static_cast<std::size_t>(i)].tokens),
              ids_of(plain_sample(model, *tokenizer_, several, i).tokens));
}

TEST_F(Batching, ASampleThatWaitsForAPrefixIsNotOvertaken) {
  Batcher two = batcher(2);
  Request both = request("some prompt");
  both.samples = 2;
  const RequestId first = two.submit(both);
  two.submit(request("other"));
  two.step();
  EXPECT_EQ(two.active(), 1u) << "the second sample waits for the first to process the prompt";
  std::vector<RequestId> started;
  for (const Event& event : two.step()) started.push_back(event.request);
  EXPECT_EQ(started, (std::vector{first, first}));
}

TEST_F(Batching, AStepProcessesAtMostItsRowsAndAtLeastOneBlock) {
  Batcher narrow(*model_, tokenizer_.get(), {.slots = 1, .rows_per_step = 64}),
      narrowest(*model_, tokenizer_.get(), {.slots = 2, .rows_per_step = 1});
  narrow.submit(request(std::string(80, 'x')));
  EXPECT_TRUE(narrow.step().empty()) << "64 of 81 tokens";
  EXPECT_FALSE(narrow.step().empty());

  narrowest.submit(request("generates"));
  ASSERT_EQ(narrowest.step().size(), 1u);
  narrowest.submit(request("joins"));
  EXPECT_EQ(narrowest.step().size(), 2u);
}

TEST_F(Batching, AFollowUpRequestReusesItsSlot) {
  Batcher two = batcher(2);
  Request first = request("once upon a time");
  const Sample previous = generate(two, first).at(0);
  Request second = first;
  for (const TokenScore& token : previous.tokens) second.prompt.push_back(token.id);
  second.prompt.push_back('!');
  // The last generated token was never fed to the model, so it is not in the slot.
  const auto expected = static_cast<std::int64_t>(first.prompt.size() + previous.tokens.size()) - 1;
  EXPECT_EQ(generate(two, second).at(0).usage.cached_tokens, expected);
}

TEST_F(Batching, AFullContextFinishesWithLength) {
  Request endless = request("hello");
  endless.max_tokens = 100000;
  Batcher one = batcher(1);
  const Sample sample = generate(one, endless).at(0);
  EXPECT_EQ(sample.finish, FinishReason::length);
  EXPECT_EQ(sample.tokens.size(), kContext - 6u + 1u) << "the last token is beyond the context";

  Request full = request(std::string(kContext - 1, 'x'));
  EXPECT_EQ(generate(one, full).at(0).tokens.size(), 1u);
}

TEST_F(Batching, AStopIdEndsTheSampleAndIsNotPartOfIt) {
  Request free = request("hello");
  Batcher one = batcher(1);
  const auto ids = ids_of(generate(one, free).at(0).tokens);
  Request stopping = free;
  stopping.stop_ids = {ids[7]};
  const auto first = static_cast<std::size_t>(std::ranges::find(ids, ids[7]) - ids.begin());
  const Sample sample = generate(one, stopping).at(0);
  EXPECT_EQ(sample.finish, FinishReason::stop);
  EXPECT_EQ(ids_of(sample.tokens),
            std::vector(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(first)));
  EXPECT_EQ(sample.usage.generated_tokens, static_cast<std::int64_t>(first) + 1);

  stopping.min_tokens = static_cast<std::int64_t>(first) + 5;
  EXPECT_GE(generate(one, stopping).at(0).tokens.size(), first + 5);
}

TEST_F(Batching, APromptIsScoredWithoutGeneratingTokens) {
  Request scoring = request("hello");
  scoring.max_tokens = 0;
  scoring.score_prompt = true;
  scoring.logprobs = 2;
  Batcher one = batcher(1);
  generate(one, request("hello"));  // a scored prompt must not reuse this slot's tokens
  const Sample sample = generate(one, scoring).at(0);
  EXPECT_EQ(sample.finish, FinishReason::length);
  EXPECT_TRUE(sample.tokens.empty());
  EXPECT_EQ(sample.text, "");
  EXPECT_EQ(sample.usage.generated_tokens, 0);
  ASSERT_EQ(ids_of(sample.prompt), scoring.prompt);
  PlainDecoder decoder(*model_);
  for (std::size_t i = 1; i < scoring.prompt.size(); ++i) {
    decoder.append(std::span(&scoring.prompt[i - 1], 1));
    EXPECT_TRUE(same_bits(sample.prompt[i], score_token(decoder.logits(), scoring.prompt[i], 2, 257)));
  }
  Request one_token = scoring;
  one_token.prompt.resize(1);
  EXPECT_EQ(generate(one, one_token).at(0).prompt.size(), 1u);
}

TEST_F(Batching, RequestsGetSlotsInOrderOfArrival) {
  Batcher two = batcher(2);
  std::vector<RequestId> ids;
  for (int i = 0; i < 5; ++i) ids.push_back(two.submit(request(std::string(1, static_cast<char>('a' + i)))));
  EXPECT_EQ(two.waiting(), 5u);
  two.step();
  EXPECT_EQ(two.active(), 2u);
  EXPECT_EQ(two.waiting(), 3u);
  std::vector<RequestId> ended;
  while (two.busy())
    for (const Event& event : two.step())
      if (event.finish) ended.push_back(event.request);
  EXPECT_EQ(ended, ids);
  EXPECT_TRUE(two.step().empty());
}

TEST_F(Batching, CancellingFreesTheSlotImmediatelyAndReturnsHeldBackTokens) {
  Batcher one = batcher(1);
  Request first = request("first"), second = request("second");
  const auto unlimited = generate(one, first).at(0);
  first.stop_strings = {unlimited.text + "never"};  // the complete text is held back
  const RequestId id = one.submit(first), next = one.submit(second);
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(one.step().empty());
  const auto events = one.cancel(id);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].finish, FinishReason::cancelled);
  EXPECT_EQ(events[0].tokens.size(), 5u);
  EXPECT_EQ(events[0].usage.generated_tokens, 5);
  EXPECT_TRUE(one.cancel(id).empty());
  EXPECT_EQ(one.active(), 0u);
  const auto after = one.step();
  ASSERT_FALSE(after.empty());
  EXPECT_EQ(after[0].request, next);
  EXPECT_EQ(one.cancel(next).size(), 1u);
  EXPECT_FALSE(one.busy());
}

TEST_F(Batching, AWaitingRequestCanBeCancelled) {
  Batcher one = batcher(1);
  one.submit(request("first"));
  const RequestId waiting = one.submit(request("second"));
  one.step();
  ASSERT_EQ(one.cancel(waiting).size(), 1u);
  EXPECT_EQ(one.waiting(), 0u);
  EXPECT_EQ(one.active(), 1u);
}

TEST_F(Batching, NonFiniteLogitsFailOnlyTheirSampleWithAHint) {
  // The head is untied, so only a request whose prompt contains bos uses the NaN.
  model_ = small_model(context_, tokenizer_->vocab_size(), kContext, "microgpt");
  model_->weights()[0] = std::numeric_limits<float>::quiet_NaN();  // the embedding of id 0: bos
  model_->weights_changed();
  Batcher two = batcher(2);
  Request fine = request("x");
  fine.prompt = {100, 101};
  fine.sampling.suppressed = {0};
  const RequestId bad = two.submit(request("hello"));
  const RequestId good = two.submit(fine);
  std::map<RequestId, Event> last;
  while (two.busy())
    for (const Event& event : two.step())
      if (event.finish) last[event.request] = event;
  ASSERT_EQ(last.size(), 2u);
  EXPECT_EQ(last[bad].finish, FinishReason::error);
  ASSERT_TRUE(last[bad].error);
  EXPECT_STREQ(last[bad].error->what(), "the model's output is not finite");
  EXPECT_NE(last[bad].error->hint(), "");
  EXPECT_EQ(last[good].finish, FinishReason::length) << "the other request is not affected";
  EXPECT_THROW(generate(two, request("hello")), Error);

  Request scored = request("hello");
  scored.score_prompt = true;
  two.submit(scored);
  const auto events = two.step();
  ASSERT_EQ(events.size(), 1u) << "one error event, although every row of the prompt fails";
  EXPECT_EQ(events[0].finish, FinishReason::error);
  EXPECT_FALSE(two.busy());
}

TEST_F(Batching, UsageReportsTimesAndCounts) {
  Batcher one = batcher(1);
  const auto samples = run_requests(one, {request("abc"), request("xyz")});
  EXPECT_EQ(samples[0].usage.prompt_tokens, 4);
  EXPECT_EQ(samples[0].usage.generated_tokens, 20);
  EXPECT_GT(samples[0].usage.prompt_seconds, 0);
  EXPECT_GT(samples[0].usage.decode_seconds, 0);
  EXPECT_GE(samples[1].usage.queue_seconds, samples[0].usage.decode_seconds);
}

TEST_F(Batching, WithoutATokenizerEventsContainOnlyTokens) {
  Batcher plain(*model_, nullptr);
  const Request plain_request = request("abc");
  const Sample sample = generate(plain, plain_request).at(0);
  EXPECT_EQ(ids_of(sample.tokens), ids_of(plain_sample(*model_, *tokenizer_, plain_request).tokens));
  EXPECT_EQ(sample.text, "");
}

TEST_F(Batching, InvalidRequestsAreRejectedWithTheFieldName) {
  Batcher one = batcher(1);
  const auto message = [&](const std::function<void(Request&)>& change) {
    Request changed = request("hello");
    change(changed);
    return message_of([&] { one.submit(changed); });
  };
  EXPECT_EQ(message([](Request& r) { r.prompt.clear(); }), "prompt must not be empty");
  EXPECT_EQ(message([](Request& r) { r.prompt.resize(97); }),
            "the prompt has 97 tokens, but the model's context is 96");
  EXPECT_EQ(message([](Request& r) { r.prompt[1] = 257; }),
            "prompt: the vocabulary has 257 tokens, got id 257");
  EXPECT_EQ(message([](Request& r) { r.sampling.temperature = -0.5f; }),
            "temperature must be >= 0, got -0.5");
  EXPECT_EQ(message([](Request& r) { r.samples = 0; }), "n must be between 1 and 1000, got 0");
  EXPECT_EQ(message([](Request& r) { r.max_tokens = -1; }), "max_tokens must be >= 0, got -1");
  EXPECT_EQ(message([](Request& r) { r.min_tokens = -1; }), "min_tokens must be >= 0, got -1");
  EXPECT_EQ(message([](Request& r) { r.logprobs = 101; }), "logprobs must be between 0 and 100, got 101");
  EXPECT_EQ(message([](Request& r) { r.stop_strings = {""}; }), "stop: a string must not be empty");
  EXPECT_EQ(message([](Request& r) { r.stop_strings = {"\xC3"}; }), "stop: a string must be valid UTF-8");
  EXPECT_EQ(message([](Request& r) { r.stop_ids = {-1}; }),
            "stop ids: the vocabulary has 257 tokens, got id -1");
  EXPECT_FALSE(one.busy());
}

TEST(EndIds, ComeFromTheTokenizer) {
  EXPECT_EQ(end_ids(*load_tokenizer("bytes")), std::vector<TokenId>{0}) << "bos, because there is no eos";
  EXPECT_EQ(end_ids(*load_tokenizer("bytes:chat")), (std::vector<TokenId>{0, 3})) << "bos and <end_turn>";
}

}  // namespace
}  // namespace thimble::batcher_test
