// The special tokens of our own chats (DESIGN 8.1): what tells answers from questions in a row of ids.
#pragma once

#include <optional>

#include "tokenizer/conversation.h"
#include "tokenizer/tokenizer.h"

namespace thimble {

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

}  // namespace thimble
