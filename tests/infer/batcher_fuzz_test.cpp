// Submits and cancels requests at random. Each must give the same result as when it runs alone.
#include <random>

#include "base/utf8.h"
#include "eval/small_model.h"
#include "infer/plain_sample.h"
#include "infer/run_requests.h"

namespace thimble::batcher_fuzz_test {
namespace {

constexpr std::int64_t kContext = 150;

// Random requests whose prompts share prefixes and whose texts often contain their stop strings.
class Requests {
 public:
  Requests(const Tokenizer& tokenizer, unsigned seed) : tokenizer_(tokenizer), random_(seed) {
    for (int i = 0; i < 3; ++i) bases_.push_back(letters(120));
    for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
      const std::string text = tokenizer.decode(std::span(&id, 1));
      if (text.size() != 1 || text[0] < 'a' || text[0] > 'd') all_but_letters_.push_back(id);
    }
  }

  std::uint64_t below(std::uint64_t bound) { return random_() % bound; }

  Request next() {
    Request request = text_request(tokenizer_, bases_[below(3)].substr(0, below(120)) + letters(below(20)));
    request.sampling = {.temperature = below(4) == 0 ? 0.0f : 1.0f, .seed = random_()};
    if (below(3) > 0) {
      request.sampling.suppressed = all_but_letters_;
      for (auto left = below(3); left > 0; --left)
        request.stop_strings.push_back("d" + letters(1 + below(3)));
    }
    if (below(3) == 0) request.sampling.repetition_penalty = 1.3f;
    if (below(3) == 0) request.sampling.top_p = 0.8f;
    request.max_tokens = static_cast<std::int64_t>(below(60));
    request.min_tokens = static_cast<std::int64_t>(below(4));
    request.samples = below(5) == 0 ? 3 : 1;
    request.logprobs = below(2) == 0 ? 2 : kNoLogprobs;
    request.score_prompt = below(6) == 0;
    request.slides = below(3) == 0;
    if (request.slides && !request.score_prompt && below(3) == 0)
      tokenizer_.encode(letters(below(kContext)), request.prompt);  // often longer than the context
    return request;
  }

 private:
  std::string letters(std::uint64_t count) {
    std::string text;
    while (count-- > 0) text += static_cast<char>('a' + below(4));
    return text;
  }

  const Tokenizer& tokenizer_;
  std::mt19937 random_;
  std::vector<std::string> bases_;
  std::vector<TokenId> all_but_letters_;
};

struct Submitted {
  Request request;
  std::vector<Sample> samples;
  std::vector<bool> ended;
};

class Fuzz {
 public:
  Fuzz(Model& model, const Tokenizer& tokenizer, unsigned seed, BatcherOptions options)
      : model_(model),
        tokenizer_(tokenizer),
        requests_(tokenizer, seed),
        batcher_(model, &tokenizer, options) {}

  void run(int count) {
    for (int number_submitted = 0;
         (number_submitted < count || batcher_.busy()) && !testing::Test::HasFatalFailure();) {
      if (number_submitted < count && requests_.below(3) == 0) submit(), ++number_submitted;
      if (requests_.below(12) == 0 && !submitted_.empty()) cancel();
      for (const Event& event : batcher_.step()) take(event);
    }
    EXPECT_EQ(ended_, submitted_.size()) << "every request ends";
  }

 private:
  void submit() {
    Request request = requests_.next();
    const auto samples = static_cast<std::size_t>(request.samples);
    submitted_[batcher_.submit(request)] = {request, std::vector<Sample>(samples),
                                            std::vector<bool>(samples)};
  }

  void cancel() {
    const RequestId id = 1 + requests_.below(submitted_.size());
    for (const Event& event : batcher_.cancel(id)) take(event);
  }

  void take(const Event& event) {
    ASSERT_FALSE(event.error);
    Submitted& submitted = submitted_.at(event.request);
    const auto index = static_cast<std::size_t>(event.sample);
    ASSERT_FALSE(submitted.ended[index]) << "an event after the last one";
    ASSERT_TRUE(is_utf8(event.text));
    Sample& sample = submitted.samples[index];
    sample.text += event.text;
    sample.tokens.insert(sample.tokens.end(), event.tokens.begin(), event.tokens.end());
    EXPECT_TRUE(event.prompt.empty() || ids_of(event.prompt) == submitted.request.prompt);
    if (!event.finish) return;
    sample.finish = *event.finish;
    submitted.ended[index] = true;
    if (std::ranges::find(submitted.ended, false) == submitted.ended.end()) ++ended_;
    compare(sample, plain_sample(model_, tokenizer_, submitted.request, event.sample));
  }

  static void compare(const Sample& sample, const Sample& alone) {
    if (sample.finish == FinishReason::cancelled) {
      // The text so far is a prefix, possibly with a part that a stop string would have cut later.
      ASSERT_TRUE(alone.text.starts_with(sample.text) || sample.text.starts_with(alone.text));
      ASSERT_LE(sample.tokens.size(), alone.tokens.size() + 4);  // a stop string could have cut some
      const std::size_t common = std::min(sample.tokens.size(), alone.tokens.size());
      for (std::size_t i = 0; i < common; ++i) ASSERT_TRUE(same_bits(sample.tokens[i], alone.tokens[i]));
      return;
    }
    ASSERT_EQ(sample.finish, alone.finish);
    ASSERT_EQ(sample.text, alone.text);
    ASSERT_TRUE(std::ranges::equal(sample.tokens, alone.tokens, same_bits));
  }

  Model& model_;
  const Tokenizer& tokenizer_;
  Requests requests_;
  Batcher batcher_;
  std::map<RequestId, Submitted> submitted_;
  std::size_t ended_ = 0;
};

void fuzz(const char* preset, unsigned seed, BatcherOptions options, int count) {
  SCOPED_TRACE(fmt::format("{}, seed {}", preset, seed));
  const Context context;
  const auto tokenizer = load_tokenizer("bytes:chat");
  const auto model = small_model(context, tokenizer->vocab_size(), kContext, preset);
  Fuzz(*model, *tokenizer, seed, options).run(count);
}

TEST(BatcherFuzz, RequestsAreUnaffectedByOthersThatJoinLeaveOrAreCancelled) {
  fuzz("llama", 1, {.slots = 4}, 60);
  fuzz("golf-plus", 2, {.slots = 3, .rows_per_step = 64}, 40);
  fuzz("microgpt", 3, {.slots = 1}, 20);
}

TEST(BatcherFuzz, ManySeedsFullTier) {
  for (unsigned seed = 10; seed < 40; ++seed)
    fuzz(seed % 2 == 0 ? "qwen3" : "golf-plus", seed,
         {.slots = 1 + seed % 9, .rows_per_step = seed % 3 == 0 ? 64 : 300}, 100);
}

}  // namespace
}  // namespace thimble::batcher_fuzz_test
