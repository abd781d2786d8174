#include "tokenizer/byte_table.h"

#include "base/error.h"

namespace thimble {

namespace {

constexpr std::string_view kPieceSpace = "\xE2\x96\x81";

bool is_text(TokenType type) {
  return type == TokenType::normal || type == TokenType::user_defined || type == TokenType::byte;
}

}  // namespace

ByteTable::ByteTable(const Tokenizer& tokenizer, TokenId model_vocab) {
  check(model_vocab >= tokenizer.vocab_size(), "the model has {} tokens, its tokenizer {}", model_vocab,
        tokenizer.vocab_size());
  const bool pieces = tokenizer.kind() == TokenizerKind::sentencepiece;
  check(!pieces || tokenizer.id_of(kPieceSpace).has_value(),
        Hint{"train the tokenizer again with a space among its required characters"},
        "this SentencePiece model has no token for a lone space, so its bytes cannot be counted");
  const auto size = static_cast<std::size_t>(model_vocab);
  bytes_.resize(size);
  leading_space_.resize(size);
  boundary_.resize(size, 1);
  std::string text;
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    const auto at = static_cast<std::size_t>(id);
    if (!is_text(tokenizer.token_type(id))) continue;
    text.clear();
    tokenizer.append_token(id, false, text);
    boundary_[at] = 0;
    leading_space_[at] = pieces && tokenizer.token_text(id).starts_with(kPieceSpace);
    bytes_[at] = static_cast<std::uint32_t>(text.size()) - leading_space_[at];
  }
}

std::uint64_t ByteTable::total(std::span<const TokenId> ids) const {
  std::uint64_t sum = 0;
  for (std::size_t i = 1; i < ids.size(); ++i) sum += bytes(ids[i - 1], ids[i]);
  return sum;
}

}  // namespace thimble
