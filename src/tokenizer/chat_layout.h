// Converts conversations to tokens, for training, scoring, chat, the server and export.
//
//   const ChatLayout layout(*tokenizer, model.layout);  // "roles", "chatml", "llama3", ...
//   std::vector<TokenId> ids = layout.prompt(turns);    // ends where the assistant's answer begins
//
//   roles    (thimble's own) <bos>, then for each turn: <role> content <end_turn>
//   chatml   for each turn: <|im_start|> "role\n" content <|im_end|> "\n"
//   llama3   bos, then for each turn:
//            <|start_header_id|> role <|end_header_id|> "\n\n" content <|eot_id|>
//
// A model file stores the layout as a short text: its name, then "+bos" if chatml begins with bos,
// then ":TEXT" with the system prompt used for conversations without one.
//
// Contents are encoded as plain text: "<end_turn>" typed by a user becomes ten characters.
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

// A conversation: turns in order. data/document.h has its JSON forms.
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

// The token that begins documents and conversations. Throws if the tokenizer has none.
TokenId bos_of(const Tokenizer& tokenizer);

// The id of a control token, which no text can produce. Returns nullopt for an ordinary token with
// the same spelling, because a text can produce that one.
std::optional<TokenId> special_with_name(const Tokenizer& tokenizer, std::string_view name);

// The special tokens of the roles layout, which separate questions from answers.
struct ChatTokens {
  TokenId bos = -1, user = -1, assistant = -1, end_turn = -1, system = -1;

  // Throws if the tokenizer lacks one of the five; the hint shows how to train one that has them.
  static ChatTokens of(const Tokenizer& tokenizer);
  static bool in(const Tokenizer& tokenizer);  // whether it has all five

  TokenId id_of(ChatRole role) const;
  bool is_role(TokenId id) const { return id == user || id == assistant || id == system; }
};

inline constexpr std::string_view kRolesLayout = "roles";

// The layout text of a model file, parsed.
struct ChatLayoutText {
  std::string name;
  bool bos = false;  // for chatml only; the other layouts always begin with bos
  std::string default_system = {};

  static ChatLayoutText parse(std::string_view text);
  std::string text() const;
  bool operator==(const ChatLayoutText&) const = default;
};

class ChatLayout {
 public:
  // Throws if the layout is unknown, or if the tokenizer lacks a token of the layout. The tokenizer
  // must outlive the layout.
  ChatLayout(const Tokenizer& tokenizer, std::string_view text);
  static ChatLayout roles(const Tokenizer& tokenizer) { return {tokenizer, kRolesLayout}; }

  const Tokenizer& tokenizer() const { return *tokenizer_; }
  const ChatLayoutText& text() const { return text_; }

  // Complete turns, as used in training.
  std::vector<TokenId> conversation(std::span<const Turn> turns) const;
  // The conversation, followed by the beginning of the assistant turn to be generated.
  std::vector<TokenId> prompt(std::span<const Turn> turns) const;

  // The parts of those two: start, turns, answer_start.
  std::span<const TokenId> start() const { return start_; }  // bos, or empty
  std::vector<TokenId> turn(const Turn& turn) const;
  std::span<const TokenId> answer_start() const { return answer_start_; }
  // The turns, preceded by the layout's default system prompt if they have none.
  Conversation completed(std::span<const Turn> turns) const;

  TokenId end_id() const { return end_; }  // ends every turn; generation stops at it

 private:
  enum class Kind { roles, chatml, llama3 };

  TokenId special(std::string_view name) const;
  void append_turn(const Turn& turn, std::vector<TokenId>& ids) const;

  const Tokenizer* tokenizer_;
  ChatLayoutText text_;
  Kind kind_;
  ChatTokens roles_ = {};                             // for Kind::roles
  TokenId open_ = -1, close_header_ = -1, end_ = -1;  // for the others; end_: for all
  std::vector<TokenId> start_, newline_, answer_start_;
};

// Conversion from and to Jinja chat templates, as in tokenizer_config.json and GGUF files.
//
//   model.layout = layout_of_template(template_text);   // "chatml:You are a helpful assistant."
//   std::string jinja = jinja_template(layout.text());  // renders to the ids of layout.prompt()
//
// Templates are recognized by the markers they contain, as in llama.cpp; they are not executed.
// Tools, and the dates that Llama 3.1 adds before a system prompt, are not supported.

// Returns a ChatLayoutText as text. For an unsupported template this is its common name ("gemma")
// or "unknown", which the constructor of ChatLayout rejects.
std::string layout_of_template(std::string_view jinja);

// The template uses `messages`, `bos_token` and `add_generation_prompt`, as Transformers and
// llama.cpp define them. It is a single line, so the treatment of blank lines does not matter.
std::string jinja_template(const ChatLayoutText& layout);

}  // namespace thimble
