// Checks the truncation rules of chat_context.h on fixed and random conversations.
#include "infer/chat_context.h"

#include <algorithm>

#include "base/rng.h"
#include "support/message_of.h"
#include "tokenizer/tokenizer_json.h"

namespace thimble {
namespace {

using Ids = std::vector<TokenId>;

std::unique_ptr<Tokenizer> bytes_for_chats() {
  auto tokenizer =
      make_bytes_tokenizer({"<bos>", "<user>", "<assistant>", "<end_turn>", "<system>", "<|im_start|>",
                            "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"});
  tokenizer->prefer({.bos = 0, .eos = {}, .unk = {}, .pad = {}});
  return tokenizer;
}

std::string words(Rng& rng, std::uint64_t most_bytes) {
  static const std::vector<std::string> kWords = {"a ", "egg ", "Grüße ", "😀", "\n", "three "};
  std::string text;
  for (const std::uint64_t bytes = rng.below(most_bytes + 1); text.size() < bytes;)
    text += kWords[rng.below(kWords.size())];
  return text + ".";
}

Conversation random_conversation(Rng& rng, std::uint64_t most_bytes) {
  Conversation turns;
  if (rng.below(2)) turns.push_back({ChatRole::system, words(rng, 20)});
  for (std::uint64_t rounds = rng.below(6); rounds > 0; --rounds) {
    turns.push_back({ChatRole::user, words(rng, most_bytes)});
    if (rng.below(8)) turns.push_back({ChatRole::assistant, words(rng, most_bytes)});
  }
  turns.push_back({ChatRole::user, words(rng, most_bytes)});
  return turns;
}

// Parses a prompt in the roles layout back into turns.
Conversation turns_in(const ChatLayout& layout, const Ids& ids) {
  const ChatTokens tokens = ChatTokens::of(layout.tokenizer());
  Conversation turns;
  EXPECT_EQ(ids.front(), tokens.bos);
  EXPECT_EQ(ids.back(), tokens.assistant);
  Ids content;
  for (std::size_t i = 1; i + 1 < ids.size(); ++i) {
    if (tokens.is_role(ids[i])) {
      turns.push_back({ids[i] == tokens.user        ? ChatRole::user
                       : ids[i] == tokens.assistant ? ChatRole::assistant
                                                    : ChatRole::system,
                       ""});
      content.clear();
    } else if (ids[i] == tokens.end_turn) {
      turns.back().content = layout.tokenizer().decode(content);
    } else {
      content.push_back(ids[i]);
    }
  }
  return turns;
}

bool starts_with_complete_character(std::string_view text) {
  return text.empty() || (static_cast<unsigned char>(text[0]) & 0xC0) != 0x80;
}

TEST(ChatContext, NothingIsCutIfAnAnswerFits) {
  const auto tokenizer = bytes_for_chats();
  const ChatLayout layout(*tokenizer, "roles");
  const Conversation turns = {{ChatRole::user, std::string(100, 'q')},
                              {ChatRole::assistant, std::string(100, 'a')},
                              {ChatRole::user, std::string(100, 'q')}};
  const std::int64_t whole = std::ssize(layout.prompt(turns));  // 308
  const FittedPrompt fits = fit_prompt(layout, turns, whole + 64);
  EXPECT_EQ(fits.ids, layout.prompt(turns));
  EXPECT_EQ(fits.answer_tokens, 64);
  EXPECT_EQ(fits.tokens_dropped, 0);

  const FittedPrompt cut = fit_prompt(layout, turns, whole + 63);
  EXPECT_EQ(cut.ids, layout.prompt(std::span(turns).last(1))) << "a question is dropped with its answer";
  EXPECT_EQ(cut.answer_tokens, (whole + 63) / 4);
  EXPECT_EQ(cut.tokens_dropped, 204);
}

TEST(ChatContext, OnlyTheBeginningOfTheNewestMessageIsCut) {
  const auto tokenizer = bytes_for_chats();
  const ChatLayout layout(*tokenizer, "roles");
  const Conversation turns = {{ChatRole::system, "Be kind."},
                              {ChatRole::user, "old"},
                              {ChatRole::assistant, "news"},
                              {ChatRole::user, fmt::format("{:x>1000}the end", "")}};
  const FittedPrompt prompt = fit_prompt(layout, turns, 256);
  const Conversation kept = turns_in(layout, prompt.ids);
  ASSERT_EQ(kept.size(), 2u);
  EXPECT_EQ(kept[0], turns[0]);
  EXPECT_TRUE(kept[1].content.ends_with("xxxthe end"));
  EXPECT_EQ(prompt.answer_tokens, 64);
  EXPECT_EQ(std::ssize(prompt.ids), 256 - 64);
  EXPECT_EQ(prompt.tokens_dropped, std::ssize(layout.prompt(turns)) - std::ssize(prompt.ids));
}

TEST(ChatContext, TinyContextsReserveAQuarterForTheAnswer) {
  const auto tokenizer = bytes_for_chats();
  const ChatLayout layout(*tokenizer, "roles");
  EXPECT_EQ(min_answer_tokens(1024), 64);
  EXPECT_EQ(min_answer_tokens(256), 64);
  EXPECT_EQ(min_answer_tokens(100), 25);
  EXPECT_EQ(min_answer_tokens(3), 1);
  const Conversation turns = {{ChatRole::user, "0123456789"}};
  const FittedPrompt prompt = fit_prompt(layout, turns, 8);  // 4 marks, 2 for the answer
  EXPECT_EQ(turns_in(layout, prompt.ids), (Conversation{{ChatRole::user, "89"}}));
  EXPECT_EQ(prompt.answer_tokens, 2);
  EXPECT_EQ(turns_in(layout, fit_prompt(layout, turns, 6).ids), (Conversation{{ChatRole::user, "9"}}));
  EXPECT_EQ(message_of([&] { fit_prompt(layout, turns, 5); }),
            "a context of 5 tokens has no room for this conversation and an answer");
  const Conversation strict = {{ChatRole::system, std::string(300, 's')}, {ChatRole::user, "hi"}};
  EXPECT_NE(message_of([&] { fit_prompt(layout, strict, 256); }).find("no room"), std::string::npos);
  EXPECT_EQ(message_of([&] { fit_prompt(layout, {}, 256); }), "there is no message to answer");
}

class EveryContext : public testing::TestWithParam<std::int64_t> {};
INSTANTIATE_TEST_SUITE_P(Sizes, EveryContext, testing::Values(32, 48, 100, 255, 256, 300, 512, 2048));

TEST_P(EveryContext, FollowsTheRules) {
  const std::int64_t C = GetParam();
  const auto tokenizer = bytes_for_chats();
  const ChatLayout layout(*tokenizer, "roles");
  Rng rng(static_cast<std::uint64_t>(C));
  int cut = 0, uncut = 0, refused = 0, partly_kept = 0;
  for (int i = 0; i < 400; ++i) {
    const Conversation turns = random_conversation(rng, static_cast<std::uint64_t>(C) / (1 + rng.below(8)));
    const std::int64_t whole = std::ssize(layout.prompt(turns));
    FittedPrompt prompt;
    try {
      prompt = fit_prompt(layout, turns, C);
    } catch (const Error&) {
      EXPECT_LT(C, 64);  // only if system prompt and marks leave no room
      ++refused;
      continue;
    }
    const std::int64_t size = std::ssize(prompt.ids);
    EXPECT_EQ(prompt.tokens_dropped, whole - size);
    EXPECT_GE(prompt.answer_tokens, min_answer_tokens(C));
    EXPECT_LE(size + prompt.answer_tokens, C);
    const Conversation kept = turns_in(layout, prompt.ids);
    EXPECT_EQ(layout.prompt(kept), prompt.ids) << "the prompt has the layout used in training";
    if (whole + min_answer_tokens(C) <= C) {
      ++uncut;
      EXPECT_EQ(kept, turns);
      EXPECT_EQ(prompt.answer_tokens, C - whole);
      continue;
    }
    ++cut;
    EXPECT_GT(prompt.tokens_dropped, 0);
    EXPECT_LE(prompt.answer_tokens, std::max<std::int64_t>(1, C / 4));
    const bool system = turns[0].role == ChatRole::system;
    if (system) {
      EXPECT_EQ(kept[0], turns[0]);
    }
    // Kept are the last turns, starting with a user turn. All are complete, except possibly the
    // newest.
    const std::size_t history = kept.size() - system;
    ASSERT_GE(history, 1u);
    EXPECT_EQ(kept[system].role, ChatRole::user);
    for (std::size_t k = 2; k <= history; ++k) EXPECT_EQ(kept[kept.size() - k], turns[turns.size() - k]);
    const std::string &newest = kept.back().content, &original = turns.back().content;
    EXPECT_TRUE(original.ends_with(newest));
    EXPECT_FALSE(newest.empty());
    EXPECT_TRUE(starts_with_complete_character(newest));
    if (newest != original) {
      EXPECT_EQ(history, 1u) << "older turns are dropped before the newest is cut";
    }
    // Nothing is dropped unnecessarily: one more round would leave less than a quarter.
    if (system + history < turns.size()) {
      std::size_t from = turns.size() - history - 1;
      while (turns[from].role != ChatRole::user) --from;
      Conversation longer(turns.begin(), turns.begin() + system);
      longer.insert(longer.end(), turns.begin() + static_cast<std::ptrdiff_t>(from), turns.end());
      EXPECT_LT(C - std::ssize(layout.prompt(longer)), C / 4);
      partly_kept += history >= 3;
    }
  }
  EXPECT_GT(partly_kept, 10) << "cut conversations with remaining history";
  EXPECT_GT(cut, 50);
  EXPECT_GT(uncut, 20);
  EXPECT_LT(refused, 200);
}

TEST_P(EveryContext, WorksForOtherLayouts) {
  const std::int64_t C = GetParam();
  const auto tokenizer = bytes_for_chats();
  Rng rng(static_cast<std::uint64_t>(C) + 1);
  for (const char* name : {"chatml:Be kind.", "llama3"}) {
    const ChatLayout layout(*tokenizer, name);
    for (int i = 0; i < 100; ++i) {
      const Conversation turns = random_conversation(rng, static_cast<std::uint64_t>(C));
      try {
        const FittedPrompt prompt = fit_prompt(layout, turns, C);
        EXPECT_LE(std::ssize(prompt.ids) + prompt.answer_tokens, C);
        EXPECT_GE(prompt.answer_tokens, min_answer_tokens(C));
        const auto start = layout.start(), answer = layout.answer_start();
        EXPECT_TRUE(std::ranges::equal(start, std::span(prompt.ids).first(start.size())));
        EXPECT_TRUE(std::ranges::equal(answer, std::span(prompt.ids).last(answer.size())));
      } catch (const Error&) {
        EXPECT_LT(C, 128) << name;
      }
    }
  }
}

// A template is rendered as a whole, again for every turn that is dropped.
TEST_P(EveryContext, ATemplateIsTruncatedLikeItsLayout) {
  const std::int64_t C = GetParam();
  const auto tokenizer = bytes_for_chats();
  const ChatLayout roles = ChatLayout::roles(*tokenizer);
  const ChatLayout rendered(*tokenizer, "jinja:" + jinja_template(roles.text()));
  ASSERT_TRUE(rendered.is_template());
  Rng rng(static_cast<std::uint64_t>(C) + 2);
  for (int i = 0; i < 30; ++i) {
    const Conversation turns = random_conversation(rng, static_cast<std::uint64_t>(C));
    FittedPrompt expected;
    try {
      expected = fit_prompt(roles, turns, C);
    } catch (const Error& error) {
      EXPECT_EQ(message_of([&] { fit_prompt(rendered, turns, C); }), error.what());
      continue;
    }
    const FittedPrompt found = fit_prompt(rendered, turns, C);
    EXPECT_EQ(found.ids, expected.ids);
    EXPECT_EQ(found.answer_tokens, expected.answer_tokens);
    EXPECT_EQ(found.tokens_dropped, expected.tokens_dropped);
  }
}

}  // namespace
}  // namespace thimble
