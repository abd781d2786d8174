// Converts conversations to tokens, for training, scoring, chat, the server and export.
//
//   const ChatLayout layout(*tokenizer, model.layout);  // "roles", "chatml", "llama3", ...
//   std::vector<TokenId> ids = layout.prompt(turns);    // ends where the assistant's answer begins
//
//   roles    (thimble's own) <bos>, then for each turn: <role> content <end_turn>
//   chatml   for each turn: <|im_start|> "role\n" content <|im_end|> "\n"
//   llama3   bos, then for each turn:
//            <|start_header_id|> role <|end_header_id|> "\n\n" content <|eot_id|>
//   jinja    what the model's own chat template renders (jinja.h)
//
// A model file stores the layout as a text: its name, then "+bos" if chatml begins with bos, then
// ":TEXT" with the system prompt used for conversations without one. For jinja, TEXT is the
// template.
//
// Contents are encoded as plain text: "<end_turn>" typed by a user becomes ten characters.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "tokenizer/jinja.h"
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

// [{"role": "user", "content": ".."}, ..]
Json messages_json(std::span<const Turn> turns);

// A conversation for training.
struct LearnedConversation {
  std::vector<TokenId> ids;   // those of ChatLayout::conversation()
  std::vector<bool> learned;  // for each: whether it is part of an answer, or the token that ends one
};

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
inline constexpr std::string_view kJinjaLayout = "jinja";

// The layout text of a model file, parsed.
struct ChatLayoutText {
  std::string name;
  bool bos = false;  // for chatml only; roles and llama3 always begin with bos
  std::string default_system = {};
  std::string jinja = {};  // the template, for jinja only

  static ChatLayoutText parse(std::string_view text);
  std::string text() const;
  bool operator==(const ChatLayoutText&) const = default;
};

class ChatLayout {
 public:
  // Throws if the layout is unknown, if the tokenizer lacks a token of the layout roles, or if the
  // template uses a construct outside the subset of jinja.h. The tokenizer must outlive the layout.
  ChatLayout(const Tokenizer& tokenizer, std::string_view text);
  static ChatLayout roles(const Tokenizer& tokenizer) { return {tokenizer, kRolesLayout}; }

  const Tokenizer& tokenizer() const { return *tokenizer_; }
  const ChatLayoutText& text() const { return text_; }
  // Special tokens of the layout that the tokenizer lacks, such as <|im_start|>. They are encoded
  // as ordinary text.
  const std::vector<std::string>& missing() const { return missing_; }
  std::string warning() const;  // a sentence about them; empty if none is missing
  // Whether a template renders the conversation as a whole: jinja, or a layout with missing tokens.
  // Then there are no separate parts.
  bool is_template() const { return kind_ == Kind::jinja; }

  // Complete turns, as used in training.
  std::vector<TokenId> conversation(std::span<const Turn> turns) const;
  // The conversation, followed by the beginning of the assistant turn to be generated.
  std::vector<TokenId> prompt(std::span<const Turn> turns) const;
  // The tokens of conversation(), and which of them are learned: what the template writes between
  // the prompt for an answer and the end of that turn, or its {% generation %} blocks. Throws if
  // the template cannot be divided like that.
  LearnedConversation learned(std::span<const Turn> turns) const;

  // What a template renders. Throws an Error with the field messages if it rejects the turns.
  std::string rendered(std::span<const Turn> turns, bool with_prompt) const;

  // Whether there is a template that uses tools, and its prompt for messages of OpenAI's form,
  // which may have tool calls and results, and for an array of tools, or null.
  bool takes_tools() const;
  std::vector<TokenId> prompt_with_tools(const Json& messages, const Json& tools) const;

  // The parts of those two: start, turns, answer_start. Not for templates.
  std::span<const TokenId> start() const { return start_; }  // bos, or empty
  std::vector<TokenId> turn(const Turn& turn) const;
  std::span<const TokenId> answer_start() const { return answer_start_; }
  // The turns, preceded by the layout's default system prompt if they have none.
  Conversation completed(std::span<const Turn> turns) const;

  TokenId end_id() const { return end_; }  // ends every turn; generation stops at it

 private:
  enum class Kind { roles, chatml, llama3, jinja };

  bool has_tokens(std::span<const std::string_view> names);
  class AnswerFinder;
  struct TypedToken {
    std::string name, marked;
  };

  void use_template(std::string_view jinja);
  std::optional<TokenId> end_of_rendered_turn() const;
  std::string render(const Json& messages, const Json& tools, bool with_prompt,
                     const JinjaOptions& options = {}) const;
  std::vector<TypedToken> typed_in(const Json& messages, const Json& tools) const;
  static Json masked(const Json& input, std::span<const TypedToken> typed);
  std::vector<TokenId> encode_rendered(std::string_view text, std::span<const TypedToken> typed) const;
  std::vector<TokenId> rendered_ids(const Json& messages, const Json& tools, bool with_prompt) const;
  std::vector<bool> tokens_in(std::string_view text, std::span<const TypedToken> typed,
                              std::span<const std::pair<std::size_t, std::size_t>> spans,
                              std::span<const TokenId> ids) const;
  TokenId special(std::string_view name) const;
  void append_turn(const Turn& turn, std::vector<TokenId>& ids) const;

  const Tokenizer* tokenizer_;
  ChatLayoutText text_;
  Kind kind_;
  ChatTokens roles_ = {};                             // for Kind::roles
  TokenId open_ = -1, close_header_ = -1, end_ = -1;  // for the others; end_: for all
  std::vector<TokenId> start_, newline_, answer_start_;
  std::optional<JinjaTemplate> template_;  // for Kind::jinja, with the next one
  std::vector<std::string> control_;       // spellings of control tokens
  bool ends_turns_ = true;                 // whether the template writes end_ after an answer
  std::vector<std::string> missing_;
};

// Conversion from and to Jinja chat templates, as in tokenizer_config.json and GGUF files.
//
//   model.layout = layout_of_template(template_text);   // "chatml:You are a helpful assistant."
//   std::string jinja = jinja_template(layout.text());  // renders to the ids of layout.prompt()

// Returns a ChatLayoutText as text: a layout above if the template renders conversations to exactly
// its tokens and uses no tools, otherwise jinja with the template. A template outside the subset of
// jinja.h that contains the marks of chatml or llama3 is read as that layout.
std::string layout_of_template(std::string_view jinja);

// The template uses `messages`, `bos_token` and `add_generation_prompt`, as Transformers and
// llama.cpp define them. It is a single line, so the treatment of blank lines does not matter,
// unless it is the model's own.
std::string jinja_template(const ChatLayoutText& layout);

// The layout of a model file for people: "chatml", or "jinja (a template of 2507 bytes)".
std::string layout_summary(std::string_view text);

}  // namespace thimble
