#include "infer/chat_context.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "infer/request.h"

namespace thimble {

namespace {

constexpr std::int64_t kLeastAnswerTokens = 64;

using Ids = std::vector<TokenId>;

std::int64_t size_of(const Ids& ids) {
  return static_cast<std::int64_t>(ids.size());
}

// The last `count` tokens of a text, as text. Tokens may cut characters: a piece of one goes, too.
std::string last_tokens(const Tokenizer& tokenizer, const Ids& ids, std::int64_t count) {
  std::string text = tokenizer.decode(std::span(ids).last(static_cast<std::size_t>(count)));
  const auto is_continuation = [](char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; };
  text.erase(text.begin(), std::ranges::find_if_not(text, is_continuation));
  return text;
}

// The turn without as much of its content's head as it takes to make at most `room` tokens of it. Empty: not even an
// empty turn does, or nothing is left of the content.
Ids without_head(const ChatLayout& layout, const Turn& turn, std::int64_t room) {
  const Ids content = layout.tokenizer().encode(turn.content);
  // The rest is encoded anew and may take a token more than it did: then a shorter one is tried.
  std::int64_t kept = std::min(size_of(content), room);
  while (kept > 0) {
    const Turn cut{turn.role, last_tokens(layout.tokenizer(), content, kept)};
    Ids ids = layout.turn(cut);
    if (size_of(ids) <= room) return cut.content.empty() ? Ids{} : ids;
    kept -= std::max<std::int64_t>(1, size_of(ids) - room);
  }
  return {};
}

// The turns of a conversation as tokens, and which of them are there.
struct Laid {
  std::vector<Ids> turns;
  std::size_t kept_from = 0;  // the first after the system prompt that stays
  std::size_t system = 0;     // how many system turns it begins with
  std::size_t newest = 0;     // the user's last, else the last of all

  std::int64_t tokens(std::size_t from, std::size_t to) const {
    return std::accumulate(turns.begin() + static_cast<std::ptrdiff_t>(from),
                           turns.begin() + static_cast<std::ptrdiff_t>(to), std::int64_t{0},
                           [](std::int64_t sum, const Ids& ids) { return sum + size_of(ids); });
  }
  std::int64_t kept() const { return tokens(0, system) + tokens(kept_from, turns.size()); }
};

Laid lay_out(const ChatLayout& layout, const Conversation& turns) {
  Laid laid;
  for (const Turn& turn : turns) laid.turns.push_back(layout.turn(turn));
  const auto begin = turns.begin();
  laid.system = static_cast<std::size_t>(
      std::ranges::find_if(turns, [](const Turn& turn) { return turn.role != ChatRole::system; }) - begin);
  laid.newest = turns.size() - 1;
  for (std::size_t i = 0; i < turns.size(); ++i)
    if (turns[i].role == ChatRole::user) laid.newest = i;
  laid.system = std::min(laid.system, laid.newest);
  laid.kept_from = laid.system;
  return laid;
}

}  // namespace

std::int64_t least_answer_tokens(std::int64_t context) {
  return std::max<std::int64_t>(1, std::min(kLeastAnswerTokens, context / 4));
}

FittedPrompt fit_prompt(const ChatLayout& layout, std::span<const Turn> turns, std::int64_t context) {
  check(!turns.empty(), "there is no message to answer");
  const Conversation all = layout.completed(turns);
  Laid laid = lay_out(layout, all);
  const std::int64_t marks = std::ssize(layout.start()) + std::ssize(layout.answer_start());
  const std::int64_t least = least_answer_tokens(context);
  const std::int64_t quarter = std::max<std::int64_t>(least, context / 4);
  const std::int64_t whole = marks + laid.kept();

  FittedPrompt prompt{.ids = {}, .answer_tokens = context - whole};
  if (prompt.answer_tokens < least) {
    while (laid.kept_from < laid.newest && context - marks - laid.kept() < quarter) do
        ++laid.kept_from;  // a question goes with its answers
      while (laid.kept_from < laid.newest && all[laid.kept_from].role != ChatRole::user);
    if (const std::int64_t left = context - marks - laid.kept(); left < least) {
      Ids& newest = laid.turns[laid.newest];
      newest = without_head(layout, all[laid.newest], size_of(newest) + left - least);
      check(!newest.empty(),
            Hint{laid.system > 0 ? "shorten the system prompt" : "the model needs a longer context to chat"},
            "a context of {} tokens has no room for this conversation and an answer", context);
    }
    prompt.answer_tokens = std::min(context - marks - laid.kept(), quarter);
  }
  prompt.ids.assign(layout.start().begin(), layout.start().end());
  for (std::size_t i = 0; i < laid.turns.size(); ++i)
    if (i < laid.system || i >= laid.kept_from)
      prompt.ids.insert(prompt.ids.end(), laid.turns[i].begin(), laid.turns[i].end());
  prompt.ids.insert(prompt.ids.end(), layout.answer_start().begin(), layout.answer_start().end());
  prompt.tokens_dropped = whole - size_of(prompt.ids);
  return prompt;
}

std::vector<TokenId> chat_stop_ids(const ChatLayout& layout) {
  const SpecialIds& special = layout.tokenizer().special();
  std::vector<TokenId> ids = {layout.end_id()};
  for (const TokenId id : end_ids(layout.tokenizer())) {
    const bool starts = id == special.bos && id != special.eos;  // ends documents, never an answer
    if (!starts && !std::ranges::count(ids, id)) ids.push_back(id);
  }
  return ids;
}

std::vector<TokenId> chat_suppressed_ids(const ChatLayout& layout) {
  const Tokenizer& tokenizer = layout.tokenizer();
  const std::vector<TokenId> stops = chat_stop_ids(layout);
  std::vector<TokenId> ids;
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    const TokenType type = tokenizer.token_type(id);
    const bool special =
        type == TokenType::control || type == TokenType::unknown || type == TokenType::unused;
    if (special && !std::ranges::count(stops, id)) ids.push_back(id);
  }
  return ids;
}

ChatRequest chat_request(const ChatLayout& layout, std::span<const Turn> turns, std::int64_t context,
                         Request asked) {
  FittedPrompt prompt = fit_prompt(layout, turns, context);
  asked.prompt = std::move(prompt.ids);
  asked.max_tokens = std::min(asked.max_tokens, prompt.answer_tokens);
  asked.min_tokens = std::max<std::int64_t>(asked.min_tokens, 1);
  asked.stop_ids = chat_stop_ids(layout);
  const std::vector<TokenId> never = chat_suppressed_ids(layout);
  asked.sampling.suppressed.insert(asked.sampling.suppressed.end(), never.begin(), never.end());
  asked.starts_text = true;
  return {std::move(asked), prompt.tokens_dropped};
}

}  // namespace thimble
