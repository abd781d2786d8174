#include "tokenizer/chat_tokens.h"

#include <array>

#include "base/error.h"

namespace thimble {

namespace {

struct NamedToken {
  std::string_view name;
  TokenId ChatTokens::*id;
};
constexpr std::array<NamedToken, 5> kTokens = {{{"<bos>", &ChatTokens::bos},
                                                {"<user>", &ChatTokens::user},
                                                {"<assistant>", &ChatTokens::assistant},
                                                {"<end_turn>", &ChatTokens::end_turn},
                                                {"<system>", &ChatTokens::system}}};

std::optional<TokenId> find(const Tokenizer& tokenizer, std::string_view name) {
  if (name == "<bos>" && tokenizer.special().bos) return tokenizer.special().bos;  // SentencePiece says <s>
  return special_with_name(tokenizer, name);
}

}  // namespace

TokenId bos_of(const Tokenizer& tokenizer) {
  const auto bos = tokenizer.special().bos;
  check(bos.has_value(), Hint{"train a tokenizer with `thimble tokenizer train`, or use --tokenizer bytes"},
        "the tokenizer has no bos token, with which documents begin");
  return *bos;
}

std::optional<TokenId> special_with_name(const Tokenizer& tokenizer, std::string_view name) {
  const auto id = tokenizer.id_of(name);
  if (!id || tokenizer.token_type(*id) != TokenType::control) return std::nullopt;
  return id;
}

ChatTokens ChatTokens::of(const Tokenizer& tokenizer) {
  ChatTokens tokens;
  for (const NamedToken& token : kTokens) {
    const auto id = find(tokenizer, token.name);
    check(id.has_value(), Hint{"train one with `thimble tokenizer train --chat`, or use bytes:chat"},
          "the tokenizer has no special token {}, which chats need", token.name);
    tokens.*token.id = *id;
  }
  return tokens;
}

bool ChatTokens::in(const Tokenizer& tokenizer) {
  for (const NamedToken& token : kTokens)
    if (!find(tokenizer, token.name)) return false;
  return true;
}

TokenId ChatTokens::id_of(ChatRole role) const {
  switch (role) {
    case ChatRole::system:
      return system;
    case ChatRole::user:
      return user;
    case ChatRole::assistant:
      return assistant;
  }
  return -1;
}

}  // namespace thimble
