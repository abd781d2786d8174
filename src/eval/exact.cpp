#include "eval/exact.h"

#include <algorithm>
#include <map>
#include <optional>

#include "base/error.h"
#include "base/text.h"
#include "infer/batcher.h"
#include "infer/chat_context.h"

namespace thimble {

namespace {

// `found`: nullopt if the prompt left no room for an answer.
void compare(const Conversation& conversation, std::optional<std::string> found, const ExactOptions& options,
             ExactScore& score) {
  const std::string& expected = conversation.back().content;
  const bool right = found && trim_right(*found) == trim_right(expected);
  score.right += right;
  ++score.total;
  const Answered answered{conversation, std::move(found).value_or(""), right};
  if (score.first.size() < options.keep_first) score.first.push_back(answered);
  if (!right && score.wrong.size() < options.keep_wrong) score.wrong.push_back(answered);
}

// Generates the answers of all conversations. An answer is limited only by the context.
class Answers {
 public:
  Answers(Model& model, const ChatLayout& layout, std::int64_t slots)
      : layout_(layout),
        ends_(chat_stop_ids(layout)),
        never_(chat_suppressed_ids(layout)),
        context_(model.config().context),
        batcher_(model, &layout.tokenizer(), {.slots = slots}) {}

  // Returns false if the prompt fills the context.
  bool ask(std::size_t index, const Conversation& conversation) {
    check(!conversation.empty() && conversation.back().role == ChatRole::assistant,
          "a conversation does not end with an answer");
    const std::span<const Turn> before(conversation.data(), conversation.size() - 1);
    Request request{.prompt = layout_.prompt(before),
                    .sampling = {.temperature = 0, .suppressed = never_},
                    .max_tokens = context_,
                    .stop_ids = ends_};
    if (std::cmp_greater_equal(request.prompt.size(), context_)) return false;
    asked_[batcher_.submit(std::move(request))] = index;
    return true;
  }

  bool busy() const { return batcher_.busy(); }

  // Appends to the answers; returns how many became complete.
  std::size_t advance(std::span<std::vector<TokenId>> answers) {
    std::size_t complete = 0;
    for (const Event& event : batcher_.step()) {
      if (event.error) throw *event.error;
      for (const TokenScore& token : event.tokens) answers[asked_.at(event.request)].push_back(token.id);
      if (event.finish) ++complete;
    }
    return complete;
  }

 private:
  const ChatLayout& layout_;
  std::vector<TokenId> ends_, never_;  // stop ids and suppressed ids, as in `thimble chat`
  std::int64_t context_;
  Batcher batcher_;
  std::map<RequestId, std::size_t> asked_;
};

}  // namespace

ExactScore score_answers(Model& model, const ChatLayout& layout, std::span<const Conversation> conversations,
                         const ExactOptions& options, const ProgressOutput& progress,
                         const Interrupt* interrupt) {
  check(!conversations.empty(), "there are no conversations to score");
  Answers answers(model, layout, options.slots);
  ExactScore score;
  ProgressBar bar(progress, "answering", "questions", conversations.size());
  std::vector<bool> asked;
  for (std::size_t i = 0; i < conversations.size(); ++i) asked.push_back(answers.ask(i, conversations[i]));
  score.too_long = std::ranges::count(asked, false);
  auto complete = static_cast<std::size_t>(score.too_long);
  std::vector<std::vector<TokenId>> found(conversations.size());
  while (answers.busy()) {
    complete += answers.advance(found);
    bar.update(complete);
    if (interrupt) interrupt->throw_if_interrupted();
  }
  for (std::size_t i = 0; i < conversations.size(); ++i)
    compare(conversations[i], asked[i] ? std::optional(layout.tokenizer().decode(found[i])) : std::nullopt,
            options, score);
  return score;
}

}  // namespace thimble
