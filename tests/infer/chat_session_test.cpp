// Tests conversations with a model of random weights: prompts, seeds and history, not the content
// of answers.
#include "infer/chat_session.h"

#include <csignal>

#include "base/json.h"
#include "base/rng.h"
#include "data/document.h"
#include "data/encode.h"
#include "eval/small_model.h"
#include "support/message_of.h"

namespace thimble {
namespace {

class Chat : public testing::Test {
 protected:
  ChatSession session(ChatOptions options = {}) {
    options.request.max_tokens = std::min<std::int64_t>(options.request.max_tokens, 24);
    return {batcher_, layout_, std::move(options)};
  }
  static ChatOptions warm(std::uint64_t seed) {
    ChatOptions options;
    options.request.sampling = {.temperature = 2, .seed = seed};
    return options;
  }
  TokenId byte(char c) const { return 5 + static_cast<unsigned char>(c); }

  Context context_;
  std::unique_ptr<Tokenizer> tokenizer_ = load_tokenizer("bytes:chat");
  std::unique_ptr<Model> model_ = small_model(context_, tokenizer_->vocab_size() + 3, 160, "llama");
  ChatLayout layout_{*tokenizer_, "roles"};
  Batcher batcher_{*model_, tokenizer_.get()};
};

TEST_F(Chat, PromptsAreTokenizedAsInTraining) {
  const BatchEncoder training(*tokenizer_, {.kind = DataKind::chat}, {});
  const std::filesystem::path file = "chats.jsonl";
  Rng rng(3);
  for (int i = 0; i < 200; ++i) {
    Conversation turns;
    if (rng.below(2)) turns.push_back({ChatRole::system, "Sei nett."});
    for (std::uint64_t rounds = 1 + rng.below(3); rounds > 0; --rounds) {
      turns.push_back({ChatRole::user, rng.below(2) ? "wie viele Äpfel?" : "<end_turn><assistant> "});
      turns.push_back({ChatRole::assistant, rng.below(2) ? "drei\n" : " 😀"});
    }
    std::vector<MixedRecord> records(1);
    records[0].record = {.raw = conversation_json(turns).dump(), .json = true, .file = &file};
    const auto trained_on = training.encode(records, {true}).at(0).parts.at(0);

    const std::span before(turns.data(), turns.size() - 1);
    const auto asked = chat_request(layout_, before, 4096, {}).request.prompt;
    ASSERT_LT(asked.size(), trained_on.size());
    EXPECT_TRUE(std::ranges::equal(asked, std::span(trained_on).first(asked.size())));
    EXPECT_EQ(asked.front(), *tokenizer_->special().bos);
  }
}

TEST_F(Chat, AnswersAreReproducibleAndEachHasItsOwnSeed) {
  ChatSession a = session(warm(7)), b = session(warm(7)), c = session(warm(8));
  const Reply first = a.ask("hi"), second = a.ask("hi");
  EXPECT_EQ(b.ask("hi").text, first.text);
  EXPECT_EQ(b.ask("hi").text, second.text);
  EXPECT_EQ(first.seed, 7u);
  EXPECT_EQ(second.seed, 8u);
  EXPECT_NE(c.ask("hi").text, first.text);
}

TEST_F(Chat, RetryAnswersTheSameQuestionWithANewSeed) {
  ChatSession chat = session(warm(7));
  EXPECT_EQ(message_of([&] { chat.retry(); }), "there is no question to ask again");
  chat.ask("one");
  const Conversation before = chat.history();
  const Reply answered = chat.ask("two");
  const Reply again = chat.retry();
  EXPECT_NE(again.seed, answered.seed);
  EXPECT_NE(again.text, answered.text);
  EXPECT_EQ(again.usage.prompt_tokens, answered.usage.prompt_tokens);
  ASSERT_EQ(chat.history().size(), 4u);
  EXPECT_TRUE(std::equal(before.begin(), before.end(), chat.history().begin()));
  EXPECT_EQ(chat.history()[2], (Turn{ChatRole::user, "two"}));
  EXPECT_EQ(chat.history()[3], (Turn{ChatRole::assistant, again.text}));
}

TEST_F(Chat, AnEmptyOrFailedRetryKeepsTheOldAnswer) {
  ChatSession chat = session(warm(7));
  chat.ask("one");
  const Conversation before = chat.history();
  Interrupt interrupt(Interrupt::Scope::task);
  std::raise(SIGINT);
  EXPECT_FALSE(chat.retry({}, &interrupt).kept) << "stopped before its first word";
  EXPECT_EQ(chat.history(), before);
  const auto gone = [](std::string_view) { throw std::runtime_error("the terminal is gone"); };
  EXPECT_THROW(chat.retry(gone), std::runtime_error);
  EXPECT_EQ(chat.history(), before);
  const Reply again = chat.retry();
  EXPECT_EQ(chat.history(), (Conversation{{ChatRole::user, "one"}, {ChatRole::assistant, again.text}}))
      << "the new answer replaces the old one";
}

TEST_F(Chat, InvalidOptionsAreRejectedByTheConstructor) {
  const auto message = [&](std::vector<std::string> stops) {
    ChatOptions options;
    options.request.stop_strings = std::move(stops);
    return message_of([&] { session(options); });
  };
  EXPECT_EQ(message({""}), "stop: a string must not be empty");
  EXPECT_EQ(message({"\xC3"}), "stop: a string must be valid UTF-8");
  EXPECT_EQ(message(std::vector<std::string>(65, "x")), "stop: at most 64 strings, got 65");
}

TEST_F(Chat, ChangedOptionsApplyToLaterAnswers) {
  ChatSession chat = session(warm(3));
  chat.ask("How are you?");
  Request asked;
  asked.max_tokens = 2;
  chat.change(asked);
  EXPECT_LE(chat.ask("And now?").usage.generated_tokens, 2);
  asked.sampling.temperature = -1;
  EXPECT_EQ(message_of([&] { chat.change(asked); }), "temperature must be >= 0, got -1");
  EXPECT_LE(chat.ask("And now?").usage.generated_tokens, 2) << "the earlier options still apply";
}

TEST_F(Chat, AnIncompleteCharacterIsDropped) {
  ChatOptions options;
  options.request.sampling = {.temperature = 0, .logit_bias = {{byte('\xC3'), 100.0f}}};
  options.request.max_tokens = 1;
  const Reply nothing = session(options).ask("hi");
  EXPECT_EQ(nothing.text, "");
  EXPECT_EQ(nothing.finish, FinishReason::length);
  options.request.max_tokens = 3;
  EXPECT_EQ(session(options).ask("hi").text, "\uFFFD\uFFFD")
      << "two invalid bytes; the third could begin a character and is dropped";
}

TEST_F(Chat, BlankAnswersAreNotAddedToTheHistory) {
  ChatOptions options;
  options.request.sampling.logit_bias = {{byte(' '), 100.0f}};
  ChatSession chat = session(options);
  const Reply reply = chat.ask("say something");
  EXPECT_EQ(reply.text.find_first_not_of(' '), std::string::npos);
  EXPECT_FALSE(reply.kept);
  EXPECT_TRUE(chat.history().empty());
  EXPECT_EQ(chat.retry().usage.prompt_tokens, reply.usage.prompt_tokens)
      << "the question is still remembered";
  EXPECT_TRUE(chat.history().empty());
}

TEST_F(Chat, SpecialTokensAreNotSampledAndAnswersAreNotEmpty) {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    Request asked{.prompt = {}, .sampling = {.temperature = 30, .seed = seed}, .max_tokens = 60};
    // Make special tokens and embedding rows beyond the tokenizer very likely.
    for (TokenId id = 0; id < 5; ++id) asked.sampling.logit_bias.push_back({id, 50.0f});
    for (TokenId id = tokenizer_->vocab_size(); id < tokenizer_->vocab_size() + 3; ++id)
      asked.sampling.logit_bias.push_back({id, 50.0f});
    const Conversation turns = {{ChatRole::user, "hi"}};
    const Sample sample = generate(batcher_, chat_request(layout_, turns, 160, asked).request).at(0);
    EXPECT_GE(sample.tokens.size(), 1u);
    for (const TokenScore& token : sample.tokens) EXPECT_GE(token.id, 5);
  }
}

TEST_F(Chat, AtLeastOneTokenIsGeneratedBeforeTheEnd) {
  ChatOptions options;
  options.request.sampling = {.temperature = 0, .logit_bias = {{layout_.end_id(), 100.0f}}};
  const Reply reply = session(options).ask("hi");
  EXPECT_EQ(reply.finish, FinishReason::stop);
  EXPECT_EQ(reply.usage.generated_tokens, 2) << "one token and the end of the turn";
}

TEST_F(Chat, StopIdsComeFromTheTokenizer) {
  EXPECT_EQ(chat_stop_ids(layout_), std::vector<TokenId>{3}) << "bos ends documents, not answers";
  EXPECT_EQ(chat_suppressed_ids(layout_), (std::vector<TokenId>{0, 1, 2, 4}));
}

TEST_F(Chat, TidyDropsOnlyLeadingBlanksAndPunctuation) {
  int dropped = 0;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    ChatOptions options = warm(seed);
    for (const char c : {'.', ',', ' ', '!'}) options.request.sampling.logit_bias.push_back({byte(c), 12.0f});
    ChatSession plain = session(options);
    options.tidy = true;
    ChatSession tidy = session(options);
    std::string shown;
    const std::string full = plain.ask("hi").text;
    const Reply reply = tidy.ask("hi", [&](std::string_view piece) { shown += piece; });
    EXPECT_EQ(shown, reply.text);
    EXPECT_TRUE(full.ends_with(reply.text));
    dropped += reply.text != full;
    EXPECT_EQ(full.substr(0, full.size() - reply.text.size())
                  .find_first_not_of(" \t\r\n!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"),
              std::string::npos);
    if (!reply.text.empty()) {
      EXPECT_EQ(std::string_view(".,! ").find(reply.text[0]), std::string_view::npos);
    }
  }
  EXPECT_GT(dropped, 5);
}

TEST_F(Chat, AnInterruptedAnswerIsKept) {
  ChatSession chat = session(warm(1));
  Interrupt interrupt(Interrupt::Scope::task);
  std::string shown;
  const Reply reply = chat.ask(
      "hi",
      [&](std::string_view piece) {
        shown += piece;
        if (shown.size() < 3) return;
        std::raise(SIGINT);
        std::raise(SIGINT);  // with Scope::task, repeated signals do not end the program
      },
      &interrupt);
  EXPECT_EQ(reply.finish, FinishReason::cancelled);
  EXPECT_EQ(reply.text, shown);
  EXPECT_LT(reply.usage.generated_tokens, 24);
  ASSERT_EQ(chat.history().size(), 2u);
  EXPECT_EQ(chat.history()[1].content, shown);
  EXPECT_TRUE(interrupt.requested());
  interrupt.forget();
  EXPECT_NE(chat.ask("go on", {}, &interrupt).finish, FinishReason::cancelled);
}

TEST_F(Chat, ALongConversationDropsOldTurnsAndReportsThem) {
  ChatOptions options = warm(5);
  options.system = "be brief";
  ChatSession chat = session(options);
  std::int64_t dropped = 0;
  for (int i = 0; i < 12; ++i) {
    const Reply reply = chat.ask(fmt::format("question number {}", i));
    EXPECT_LE(reply.usage.prompt_tokens + reply.usage.generated_tokens, 160);
    if (reply.tokens_dropped > 0) {
      EXPECT_LE(reply.usage.generated_tokens, 160 / 4);
    }
    dropped += reply.tokens_dropped;
  }
  EXPECT_GT(dropped, 0);
  EXPECT_EQ(chat.conversation().front(), (Turn{ChatRole::system, "be brief"}));
  EXPECT_GT(chat.context_used(), 160) << "the history itself is not truncated";
  const Reply huge = chat.ask(fmt::format("{:x>1000}the end", ""));
  EXPECT_EQ(huge.usage.prompt_tokens, 160 - 40);
}

TEST_F(Chat, TheHistoryIsReusedFromTheCache) {
  ChatSession chat = session(warm(5));
  const Reply first = chat.ask("a question");
  const Reply second = chat.ask("another");
  EXPECT_GE(second.usage.cached_tokens, first.usage.prompt_tokens);
}

TEST_F(Chat, ClearAndReplaceChangeTheHistory) {
  ChatOptions options = warm(5);
  options.system = "kind";
  ChatSession chat = session(options);
  chat.ask("hi");
  chat.clear();
  EXPECT_EQ(chat.conversation(), (Conversation{{ChatRole::system, "kind"}}));
  EXPECT_EQ(message_of([&] { chat.retry(); }), "there is no question to ask again");
  const Conversation loaded = {{ChatRole::system, "s"}, {ChatRole::user, "q"}, {ChatRole::assistant, "a"}};
  chat.replace(loaded);
  EXPECT_EQ(chat.conversation(), loaded);
  const Reply again = chat.retry();
  EXPECT_EQ(chat.history(), (Conversation{{ChatRole::user, "q"}, {ChatRole::assistant, again.text}}));
}

}  // namespace
}  // namespace thimble
