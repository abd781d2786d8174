// A conversation as tokens (DESIGN 8.1): <bos>, then for each turn <role> content <end_turn>.
//
//   const std::vector<TokenId> ids = encode_prompt(*tokenizer, turns);   // ends with <assistant>: now it speaks
//
// Contents are encoded as plain text: "<end_turn>" typed by a user is ten characters.
#pragma once

#include <span>
#include <vector>

#include "data/chat.h"
#include "tokenizer/tokenizer.h"

namespace thimble {

// With which documents and conversations begin. A tokenizer without one is an error.
TokenId bos_of(const Tokenizer& tokenizer);

struct ChatTokens {
  TokenId bos = -1, user = -1, assistant = -1, end_turn = -1, system = -1;

  // A tokenizer without all five is an error with the hint how to get one.
  static ChatTokens of(const Tokenizer& tokenizer);
  static bool in(const Tokenizer& tokenizer);  // has it all five?

  TokenId id_of(ChatRole role) const;
  bool is_role(TokenId id) const { return id == user || id == assistant || id == system; }
};

std::vector<TokenId> encode_conversation(const Tokenizer& tokenizer, std::span<const Turn> turns);
// Up to and with the <assistant> of the turn that is to be written.
std::vector<TokenId> encode_prompt(const Tokenizer& tokenizer, std::span<const Turn> turns);

}  // namespace thimble
