#include "infer/chat_context.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "infer/request.h"

namespace thimble {

namespace {

constexpr std::int64_t kMinAnswerTokens = 64;

using Ids = std::vector<TokenId>;

std::int64_t size_of(const Ids& ids) {
  return static_cast<std::int64_t>(ids.size());
}

// The text of the last `count` tokens. If it begins inside a character, that partial character is
// dropped.
std::string last_tokens(const Tokenizer& tokenizer, const Ids& ids, std::int64_t count) {
  std::string text = tokenizer.decode(std::span(ids).last(static_cast<std::size_t>(count)));
  const auto is_continuation = [](char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; };
  text.erase(text.begin(), std::ranges::find_if_not(text, is_continuation));
  return text;
}

// The turn with the beginning of its content cut until the turn has at most `room` tokens. Empty if
// the content would be empty or if even an empty turn does not fit.
Ids without_beginning(const ChatLayout& layout, const Turn& turn, std::int64_t room) {
  const Ids content = layout.tokenizer().encode(turn.content);
  // Re-encoding the remaining text may produce more tokens than before; then try a shorter text.
  std::int64_t kept = std::min(size_of(content), room);
  while (kept > 0) {
    const Turn cut{turn.role, last_tokens(layout.tokenizer(), content, kept)};
    Ids ids = layout.turn(cut);
    if (size_of(ids) <= room) return cut.content.empty() ? Ids{} : ids;
    kept -= std::max<std::int64_t>(1, size_of(ids) - room);
  }
  return {};
}

// Which turns of a conversation are kept.
struct KeptTurns {
  explicit KeptTurns(const Conversation& turns) {
    system = static_cast<std::size_t>(
        std::ranges::find_if(turns, [](const Turn& turn) { return turn.role != ChatRole::system; }) -
        turns.begin());
    newest = turns.size() - 1;
    for (std::size_t i = 0; i < turns.size(); ++i)
      if (turns[i].role == ChatRole::user) newest = i;
    system = std::min(system, newest);
    kept_from = system;
  }

  // Drops the oldest question together with its answers. False if only the newest is left.
  bool drop(const Conversation& turns) {
    if (kept_from >= newest) return false;
    do ++kept_from;
    while (kept_from < newest && turns[kept_from].role != ChatRole::user);
    return true;
  }

  std::size_t kept_from = 0;  // first turn after the system prompt that is kept
  std::size_t system = 0;     // number of leading system turns
  std::size_t newest = 0;     // last user turn, or the last turn if there is none
};

struct TokenizedTurns : KeptTurns {
  TokenizedTurns(const ChatLayout& layout, const Conversation& all) : KeptTurns(all) {
    for (const Turn& turn : all) turns.push_back(layout.turn(turn));
  }

  std::vector<Ids> turns;

  std::int64_t tokens(std::size_t from, std::size_t to) const {
    return std::accumulate(turns.begin() + static_cast<std::ptrdiff_t>(from),
                           turns.begin() + static_cast<std::ptrdiff_t>(to), std::int64_t{0},
                           [](std::int64_t sum, const Ids& ids) { return sum + size_of(ids); });
  }
  std::int64_t kept() const { return tokens(0, system) + tokens(kept_from, turns.size()); }
};

[[noreturn]] void fail_without_room(const KeptTurns& kept, std::int64_t context) {
  fail(Hint{kept.system > 0 ? "shorten the system prompt" : "the model needs a longer context to chat"},
       "a context of {} tokens has no room for this conversation and an answer", context);
}

// The same rules for a template, which renders conversations as a whole.
FittedPrompt fit_rendered(const ChatLayout& layout, Conversation turns, std::int64_t context) {
  const std::int64_t least = min_answer_tokens(context);
  const std::int64_t quarter = std::max<std::int64_t>(least, context / 4);
  FittedPrompt prompt{.ids = layout.prompt(turns)};
  const std::int64_t whole = size_of(prompt.ids);
  prompt.answer_tokens = context - whole;
  if (prompt.answer_tokens >= least) return prompt;

  KeptTurns kept(turns);
  const auto render = [&] {
    Conversation left(turns.begin(), turns.begin() + static_cast<std::ptrdiff_t>(kept.system));
    left.insert(left.end(), turns.begin() + static_cast<std::ptrdiff_t>(kept.kept_from), turns.end());
    prompt.ids = layout.prompt(left);
    return context - size_of(prompt.ids);
  };
  std::int64_t free = prompt.answer_tokens;
  while (free < quarter && kept.drop(turns)) free = render();
  std::string& newest = turns[kept.newest].content;
  const Ids content = layout.tokenizer().encode(newest);
  for (std::int64_t tokens = size_of(content); free < least;) {
    tokens -= least - free;
    if (tokens > 0) newest = last_tokens(layout.tokenizer(), content, tokens);
    if (tokens <= 0 || newest.empty()) fail_without_room(kept, context);
    free = render();
  }
  prompt.answer_tokens = std::min(free, quarter);
  prompt.tokens_dropped = whole - size_of(prompt.ids);
  return prompt;
}

}  // namespace

std::int64_t min_answer_tokens(std::int64_t context) {
  return std::max<std::int64_t>(1, std::min(kMinAnswerTokens, context / 4));
}

FittedPrompt fit_prompt(const ChatLayout& layout, std::span<const Turn> turns, std::int64_t context) {
  check(!turns.empty(), "there is no message to answer");
  if (layout.is_template()) return fit_rendered(layout, Conversation(turns.begin(), turns.end()), context);
  const Conversation all = layout.completed(turns);
  TokenizedTurns tokenized(layout, all);
  const std::int64_t marks = std::ssize(layout.start()) + std::ssize(layout.answer_start());
  const std::int64_t least = min_answer_tokens(context);
  const std::int64_t quarter = std::max<std::int64_t>(least, context / 4);
  const std::int64_t whole = marks + tokenized.kept();

  FittedPrompt prompt{.ids = {}, .answer_tokens = context - whole};
  if (prompt.answer_tokens < least) {
    while (context - marks - tokenized.kept() < quarter && tokenized.drop(all)) {
    }
    if (const std::int64_t left = context - marks - tokenized.kept(); left < least) {
      Ids& newest = tokenized.turns[tokenized.newest];
      newest = without_beginning(layout, all[tokenized.newest], size_of(newest) + left - least);
      if (newest.empty()) fail_without_room(tokenized, context);
    }
    prompt.answer_tokens = std::min(context - marks - tokenized.kept(), quarter);
  }
  prompt.ids.assign(layout.start().begin(), layout.start().end());
  for (std::size_t i = 0; i < tokenized.turns.size(); ++i)
    if (i < tokenized.system || i >= tokenized.kept_from)
      prompt.ids.insert(prompt.ids.end(), tokenized.turns[i].begin(), tokenized.turns[i].end());
  prompt.ids.insert(prompt.ids.end(), layout.answer_start().begin(), layout.answer_start().end());
  prompt.tokens_dropped = whole - size_of(prompt.ids);
  return prompt;
}

std::vector<TokenId> chat_stop_ids(const ChatLayout& layout) {
  const SpecialIds& special = layout.tokenizer().special();
  std::vector<TokenId> ids = {layout.end_id()};
  for (const TokenId id : end_ids(layout.tokenizer())) {
    const bool starts = id == special.bos && id != special.eos;  // separates documents
    if (!starts && !std::ranges::count(ids, id)) ids.push_back(id);
  }
  return ids;
}

std::vector<TokenId> chat_suppressed_ids(const ChatLayout& layout) {
  return textless_ids(layout.tokenizer(), chat_stop_ids(layout));
}

ChatRequest chat_request(const ChatLayout& layout, std::span<const Turn> turns, std::int64_t context,
                         Request options) {
  FittedPrompt prompt = fit_prompt(layout, turns, context);
  options.prompt = std::move(prompt.ids);
  options.max_tokens = std::min(options.max_tokens, prompt.answer_tokens);
  options.min_tokens = std::max<std::int64_t>(options.min_tokens, 1);
  options.stop_ids = chat_stop_ids(layout);
  const std::vector<TokenId> suppressed = chat_suppressed_ids(layout);
  options.sampling.suppressed.insert(options.sampling.suppressed.end(), suppressed.begin(), suppressed.end());
  options.starts_text = true;
  return {std::move(options), prompt.tokens_dropped};
}

}  // namespace thimble
