// How a conversation becomes tokens: the one place, for training, scoring, chat, the server and export.
//
//   const ChatLayout layout(*tokenizer, model.layout);      // "roles", "chatml", "llama3", ...
//   std::vector<TokenId> ids = layout.prompt(turns);        // ends where the assistant speaks
//
//   roles    <bos>, then for each turn <role> content <end_turn>            what we train (DESIGN 8.1)
//   chatml   for each turn <|im_start|> "role\n" content <|im_end|> "\n"
//   llama3   bos, then for each turn <|start_header_id|> role <|end_header_id|> "\n\n" content <|eot_id|>
//
// A model file keeps the layout as a short text: its name, "+bos" where chatml begins with bos, and ":TEXT" for
// the system prompt of conversations that bring none.
//
// Contents are encoded as plain text: "<end_turn>" typed by a user is ten characters.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace thimble {

// Who said what, in order. Its JSON forms are in data/document.h, its tokens in chat_layout.h.
enum class ChatRole { system, user, assistant };

constexpr std::string_view name_of(ChatRole role) {
  constexpr std::array<std::string_view, 3> kNames = {"system", "user", "assistant"};
  return kNames[static_cast<std::size_t>(role)];
}

struct Turn {
  ChatRole role;
  std::string content;
  bool operator==(const Turn&) const = default;
};
using Conversation = std::vector<Turn>;

// The special tokens of our own chats (DESIGN 8.1): what tells answers from questions in a row of ids.
// With which documents and conversations begin. A tokenizer without one is an error.
TokenId bos_of(const Tokenizer& tokenizer);

// An id that no text can produce. An ordinary token that reads so could come from a text: it is none.
std::optional<TokenId> special_with_name(const Tokenizer& tokenizer, std::string_view name);

struct ChatTokens {
  TokenId bos = -1, user = -1, assistant = -1, end_turn = -1, system = -1;

  // A tokenizer without all five is an error with the hint how to get one.
  static ChatTokens of(const Tokenizer& tokenizer);
  static bool in(const Tokenizer& tokenizer);  // has it all five?

  TokenId id_of(ChatRole role) const;
  bool is_role(TokenId id) const { return id == user || id == assistant || id == system; }
};

inline constexpr std::string_view kRolesLayout = "roles";

// The text above, taken apart.
struct ChatLayoutText {
  std::string name;
  bool bos = false;  // of chatml; the others always begin with it
  std::string default_system = {};

  static ChatLayoutText parse(std::string_view text);
  std::string text() const;
  bool operator==(const ChatLayoutText&) const = default;
};

class ChatLayout {
 public:
  // A layout that is none of the three is an error that names it, so is a tokenizer without the tokens it takes.
  // The tokenizer must outlive the layout.
  ChatLayout(const Tokenizer& tokenizer, std::string_view text);
  static ChatLayout roles(const Tokenizer& tokenizer) { return {tokenizer, kRolesLayout}; }

  const Tokenizer& tokenizer() const { return *tokenizer_; }
  const ChatLayoutText& text() const { return text_; }

  // Whole turns, as training sees them.
  std::vector<TokenId> conversation(std::span<const Turn> turns) const;
  // Up to where the turn of the assistant's that is to be written begins.
  std::vector<TokenId> prompt(std::span<const Turn> turns) const;

  // What those two are made of: start, turns, answer_start.
  std::span<const TokenId> start() const { return start_; }  // bos, or nothing
  std::vector<TokenId> turn(const Turn& turn) const;
  std::span<const TokenId> answer_start() const { return answer_start_; }
  // With the system prompt that this layout gives to conversations without one.
  Conversation completed(std::span<const Turn> turns) const;

  TokenId end_id() const { return end_; }  // the last of a turn: the assistant is done

 private:
  enum class Kind { roles, chatml, llama3 };

  TokenId special(std::string_view name) const;
  void append_turn(const Turn& turn, std::vector<TokenId>& ids) const;

  const Tokenizer* tokenizer_;
  ChatLayoutText text_;
  Kind kind_;
  ChatTokens roles_ = {};                             // of roles
  TokenId open_ = -1, close_header_ = -1, end_ = -1;  // of the others; end_: of all
  std::vector<TokenId> start_, newline_, answer_start_;
};

// Layouts as others write them down: Jinja templates, in tokenizer_config.json and in GGUF files.
//
//   model.layout = layout_of_template(template_text);       // "chatml:You are a helpful assistant."
//   std::string jinja = jinja_template(layout.text());      // renders to the very ids of layout.prompt()
//
// Templates are recognised by the marks they print, as llama.cpp does it; they are not run. Tools, and what Llama
// 3.1 puts before a system prompt (dates), are left out.

// A ChatLayoutText as text. A template that is none of ours gets the name it goes by ("gemma") or "unknown", which
// ChatLayout refuses.
std::string layout_of_template(std::string_view jinja);

// Takes `messages`, `bos_token` and `add_generation_prompt`, as Transformers and llama.cpp give them. On one line:
// nothing depends on how blank lines are treated.
std::string jinja_template(const ChatLayoutText& layout);

}  // namespace thimble
