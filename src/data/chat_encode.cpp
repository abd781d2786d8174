#include "data/chat_encode.h"

#include <array>
#include <optional>

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

// As a special token: an ordinary one that reads so could come from a text.
std::optional<TokenId> special_with_name(const Tokenizer& tokenizer, std::string_view name) {
  if (name == "<bos>" && tokenizer.special().bos) return tokenizer.special().bos;  // SentencePiece says <s>
  const auto id = tokenizer.id_of(name);
  if (!id || tokenizer.token_type(*id) != TokenType::control) return std::nullopt;
  return id;
}

}  // namespace

TokenId bos_of(const Tokenizer& tokenizer) {
  const auto bos = tokenizer.special().bos;
  check(bos.has_value(), Hint{"train a tokenizer with `thimble tokenizer train`, or use --tokenizer bytes"},
        "the tokenizer has no bos token, with which documents begin");
  return *bos;
}

ChatTokens ChatTokens::of(const Tokenizer& tokenizer) {
  ChatTokens tokens;
  for (const NamedToken& token : kTokens) {
    const auto id = special_with_name(tokenizer, token.name);
    check(id.has_value(), Hint{"train one with `thimble tokenizer train --chat`, or use bytes:chat"},
          "the tokenizer has no special token {}, which chats need", token.name);
    tokens.*token.id = *id;
  }
  return tokens;
}

bool ChatTokens::in(const Tokenizer& tokenizer) {
  for (const NamedToken& token : kTokens)
    if (!special_with_name(tokenizer, token.name)) return false;
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

std::vector<TokenId> encode_conversation(const Tokenizer& tokenizer, std::span<const Turn> turns) {
  const ChatTokens tokens = ChatTokens::of(tokenizer);
  std::vector<TokenId> ids = {tokens.bos};
  for (const Turn& turn : turns) {
    ids.push_back(tokens.id_of(turn.role));
    tokenizer.encode(turn.content, ids);
    ids.push_back(tokens.end_turn);
  }
  return ids;
}

std::vector<TokenId> encode_prompt(const Tokenizer& tokenizer, std::span<const Turn> turns) {
  std::vector<TokenId> ids = encode_conversation(tokenizer, turns);
  ids.push_back(ChatTokens::of(tokenizer).assistant);
  return ids;
}

}  // namespace thimble
