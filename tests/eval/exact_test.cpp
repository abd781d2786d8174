#include "eval/exact.h"

#include "base/error.h"
#include "eval/small_model.h"
#include "infer/chat_context.h"
#include "infer/plain_decoder.h"
#include "tokenizer/chat_layout.h"

namespace thimble::exact_test {
namespace {

struct Fixture {
  Context context;
  std::unique_ptr<Tokenizer> tokenizer = load_tokenizer("bytes:chat");
  std::unique_ptr<Model> model;
  TokenId end = ChatTokens::of(*tokenizer).end_turn;

  explicit Fixture(const char* preset = "quick")
      : model(small_model(context, tokenizer->vocab_size(), 48, preset)) {}

  // The model's answer, decoded in the simplest way: one sequence in one slot.
  std::string answer_to(std::span<const Turn> turns) {
    PlainDecoder decoder(*model);
    std::vector<TokenId> answer;
    const ChatLayout layout = ChatLayout::roles(*tokenizer);
    const std::vector<TokenId> never = chat_suppressed_ids(layout);
    decoder.append(layout.prompt(turns));
    while (const auto next = decoder.likeliest(end, never)) {
      answer.push_back(*next);
      if (decoder.room() == 0) break;
      decoder.append(std::span(&*next, 1));
    }
    return tokenizer->decode(answer);
  }

  // Questions of various lengths, each with the answer that this model gives.
  std::vector<Conversation> with_model_answers(int count) {
    std::vector<Conversation> conversations;
    for (int i = 0; i < count; ++i) {
      Conversation turns = {{ChatRole::user, std::string(static_cast<std::size_t>(1 + i * 7 % 30),
                                                         static_cast<char>('a' + i))}};
      if (i % 3 == 0) turns.insert(turns.begin(), {ChatRole::system, "be"});
      turns.push_back({ChatRole::assistant, answer_to(turns)});
      conversations.push_back(turns);
    }
    return conversations;
  }

  ExactScore score(std::span<const Conversation> conversations, const ExactOptions& options = {}) {
    return score_answers(*model, ChatLayout::roles(*tokenizer), conversations, options,
                         ProgressOutput::nowhere());
  }
};

class EveryFamily : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Presets, EveryFamily, testing::Values("quick", "golf-plus", "microgpt"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase(name, '-');
                           return name;
                         });

TEST_P(EveryFamily, BatchedAnswersEqualSingleOnes) {
  Fixture f(GetParam());
  const auto conversations = f.with_model_answers(23);
  for (std::int64_t slots : {1, 4, 64}) {
    const ExactScore score = f.score(conversations, {.slots = slots});
    EXPECT_EQ(score.right, 23) << slots << " slots";
    EXPECT_EQ(score.total, 23);
    EXPECT_EQ(score.rate(), 1.0);
    EXPECT_TRUE(score.wrong.empty());
  }
}

TEST(Exact, ADifferenceOfOneLetterIsWrongAndReported) {
  Fixture f;
  auto conversations = f.with_model_answers(6);
  const std::string given = conversations[4].back().content;
  conversations[4].back().content += "x";
  const ExactScore score = f.score(conversations);
  EXPECT_EQ(score.right, 5);
  EXPECT_EQ(score.total, 6);
  ASSERT_EQ(score.wrong.size(), 1u);
  EXPECT_EQ(score.wrong[0].conversation, conversations[4]);
  EXPECT_EQ(score.wrong[0].found, given);
  EXPECT_FALSE(score.wrong[0].right);
}

TEST(Exact, IgnoresTrailingWhitespace) {
  Fixture f;
  auto conversations = f.with_model_answers(2);
  for (Conversation& turns : conversations) turns.back().content += " \n";
  EXPECT_EQ(f.score(conversations).right, 2);
}

TEST(Exact, AQuestionThatFillsTheContextCountsAsWrong) {
  Fixture f;
  auto conversations = f.with_model_answers(2);
  conversations.push_back({{ChatRole::user, std::string(60, 'a')}, {ChatRole::assistant, "b"}});
  conversations.push_back({{ChatRole::user, std::string(60, 'a')}, {ChatRole::assistant, ""}});
  const ExactScore score = f.score(conversations);
  EXPECT_EQ(score.total, 4);
  EXPECT_EQ(score.right, 2) << "an empty expected answer must not match a question that was not asked";
  EXPECT_EQ(score.too_long, 2);
}

TEST(Exact, ReturnsTheFirstAnswers) {
  Fixture f;
  auto conversations = f.with_model_answers(9);
  conversations[1].back().content += "?";
  const ExactScore score = f.score(conversations, {.slots = 4, .keep_first = 3, .keep_wrong = 0});
  ASSERT_EQ(score.first.size(), 3u);
  EXPECT_TRUE(score.wrong.empty());
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(score.first[i].conversation, conversations[i]);
    EXPECT_EQ(score.first[i].right, i != 1);
  }
}

TEST(Exact, ReturnsTheRequestedNumberOfWrongAnswers) {
  Fixture f;
  auto conversations = f.with_model_answers(9);
  for (Conversation& turns : conversations) turns.back().content += "?";
  EXPECT_EQ(f.score(conversations, {.keep_wrong = 2}).wrong.size(), 2u);
  EXPECT_EQ(f.score(conversations, {.keep_wrong = 2}).right, 0);
}

TEST(Exact, RejectsConversationsWithoutAnAnswer) {
  Fixture f;
  EXPECT_THROW(f.score({}), Error);
  const std::vector<Conversation> questions = {{{ChatRole::user, "a"}}};
  EXPECT_THROW(f.score(questions), Error);
}

}  // namespace
}  // namespace thimble::exact_test
