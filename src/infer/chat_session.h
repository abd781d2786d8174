// A conversation that grows: questions in, answers out.
//
//   ChatSession session(batcher, layout, {.asked = {.sampling = {.seed = 7}}});
//   const Reply reply = session.ask("How many eggs?", show, &interrupt);
//
// The history holds whole exchanges only. An answer of which nothing is left (empty, blanks, or stopped before its
// first word) leaves no trace there, and neither does its question. The n-th answer of a session, retries included, has
// seed + n: the same questions give the same answers.
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
  Request asked = {};  // see chat_context.h; seed is that of the first answer
  bool tidy = false;   // drops punctuation and blanks with which an answer begins
  std::string system = {};
};

struct Reply {
  std::string text;
  FinishReason finish = FinishReason::stop;  // cancelled: interrupted; the text is what there was
  Usage usage;
  std::int64_t tokens_dropped = 0;
  std::uint64_t seed = 0;
  bool kept = true;  // is it in the history?
};

class ChatSession {
 public:
  // Both outlive it. Throws what check_request throws: better now than at every question.
  ChatSession(Batcher& batcher, const ChatLayout& layout, ChatOptions options);

  using Show = std::function<void(std::string_view piece)>;  // whole characters, as they come
  Reply ask(std::string question, const Show& show = {}, const Interrupt* interrupt = nullptr);
  // The last question again, in place of its answer, which stays where nothing comes of it. Without a question it is an
  // error.
  Reply retry(const Show& show = {}, const Interrupt* interrupt = nullptr);

  void clear();                        // forgets all but the system prompt
  void set_system(std::string text);   // empty: none
  void replace(Conversation history);  // by one from elsewhere; it ends with an answer or has none
  const Conversation& history() const { return history_; }  // without the system prompt
  Conversation conversation() const { return with_system(history_); }
  const std::string& system() const { return system_; }
  const ChatLayout& layout() const { return layout_; }
  std::int64_t context() const;
  std::int64_t context_used() const;  // by the history, if it were all kept

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
