// An interactive conversation with its history.
//
//   ChatSession session(batcher, layout, {.request = {.sampling = {.seed = 7}}});
//   const Reply reply = session.ask("How many eggs?", show, &interrupt);
//
// The history contains complete exchanges only. If an answer is empty (no text, only blanks, or
// stopped before its first word), neither the answer nor its question is added. Answers are counted
// from 0, retries included, and answer n uses seed + n, so the same questions give the same
// answers.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/signals.h"
#include "infer/chat_context.h"
#include "infer/generate.h"

namespace thimble {

struct ChatOptions {
  Request request = {};  // see chat_request(); sampling.seed is used for the first answer
  bool tidy = false;     // drop blanks and punctuation at the beginning of answers
  std::string system = {};
};

struct Reply {
  std::string text;
  FinishReason finish = FinishReason::stop;  // cancelled: interrupted, `text` is incomplete
  Usage usage;
  std::int64_t tokens_dropped = 0;
  std::uint64_t seed = 0;
  bool kept = true;  // whether it was added to the history
};

class ChatSession {
 public:
  // `batcher` and `layout` must outlive the session. Throws what check_request throws, so that
  // invalid options are reported before the first question.
  ChatSession(Batcher& batcher, const ChatLayout& layout, ChatOptions options);

  // Called with complete characters as they are generated.
  using Show = std::function<void(std::string_view piece)>;
  Reply ask(std::string question, const Show& show = {}, const Interrupt* interrupt = nullptr);
  // Asks the last question again and replaces its answer. If the new answer is empty or fails, the
  // old one is kept. Throws if no question was asked.
  Reply retry(const Show& show = {}, const Interrupt* interrupt = nullptr);

  // Changes sampling, stops and lengths of later answers. Throws what check_request throws.
  void change(Request request);
  void clear();                                             // keeps the system prompt
  void set_system(std::string text);                        // empty: no system prompt
  void replace(Conversation history);                       // must end with an answer, or be empty
  const Conversation& history() const { return history_; }  // without the system prompt
  Conversation conversation() const { return with_system(history_); }
  const std::string& system() const { return system_; }
  const ChatLayout& layout() const { return layout_; }
  std::int64_t context() const;
  std::int64_t context_used() const;  // tokens of the complete, untruncated history

 private:
  Conversation with_system(Conversation turns) const;

  Batcher& batcher_;
  const ChatLayout& layout_;
  ChatOptions options_;
  std::string system_;
  Conversation history_;
  std::optional<std::string> last_question_;
  bool last_kept_ = false;
  std::uint64_t answers_ = 0;
};

}  // namespace thimble
