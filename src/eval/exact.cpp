#include "eval/exact.h"

#include <algorithm>

#include "base/error.h"
#include "data/chat_encode.h"
#include "eval/greedy_batch.h"

namespace thimble {

namespace {

std::string_view without_blanks_at_end(std::string_view text) {
  const std::size_t last = text.find_last_not_of(" \t\r\n");
  return text.substr(0, last == std::string_view::npos ? 0 : last + 1);
}

struct Asked {
  const Conversation* conversation;
  std::vector<TokenId> prompt;
};

void compare(const Conversation& conversation, std::string found, const ExactOptions& options,
             ExactScore& score) {
  const bool right = without_blanks_at_end(found) == without_blanks_at_end(conversation.back().content);
  score.right += right;
  ++score.total;
  const Answered answered{conversation, std::move(found), right};
  if (score.first.size() < options.keep_first) score.first.push_back(answered);
  if (!right && score.wrong.size() < options.keep_wrong) score.wrong.push_back(answered);
}

}  // namespace

ExactScore score_answers(Model& model, const Tokenizer& tokenizer,
                         std::span<const Conversation> conversations, const ExactOptions& options,
                         const ProgressOutput& progress, const Interrupt* interrupt) {
  check(!conversations.empty(), "there are no conversations to score");
  const GreedyOptions greedy{.end = ChatTokens::of(tokenizer).end_turn, .allowed = tokenizer.vocab_size()};
  KvCache cache(model.config(), options.slots, model.dtype());
  ExactScore score;
  ProgressBar bar(progress, "answering", "questions", conversations.size());
  std::vector<Asked> waiting;
  const auto answer = [&] {
    std::vector<std::vector<TokenId>> prompts;
    for (const Asked& asked : waiting) prompts.push_back(asked.prompt);
    const auto answers = continue_greedily(model, cache, prompts, greedy, interrupt);
    for (std::size_t i = 0; i < waiting.size(); ++i)
      compare(*waiting[i].conversation, tokenizer.decode(answers[i]), options, score);
    waiting.clear();
    bar.update(static_cast<std::uint64_t>(score.total));
  };
  for (const Conversation& conversation : conversations) {
    check(!conversation.empty() && conversation.back().role == ChatRole::assistant,
          "a conversation without an answer at its end");
    const std::span<const Turn> before(conversation.data(), conversation.size() - 1);
    std::vector<TokenId> prompt = encode_prompt(tokenizer, before);
    if (std::cmp_greater_equal(prompt.size(), model.config().context)) {
      ++score.too_long;
      compare(conversation, "", options, score);
      continue;
    }
    waiting.push_back({&conversation, std::move(prompt)});
    if (std::cmp_equal(waiting.size(), options.slots)) answer();
  }
  if (!waiting.empty()) answer();
  return score;
}

}  // namespace thimble
