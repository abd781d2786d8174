// How many bytes of text each token stands for: the denominator of bits per byte.
//
// For SentencePiece this is the published rule of parameter-golf, so that figures compare: a leading U+2581
// is one byte, but not at the start of a document; byte tokens are one byte; control tokens none. For BPE and
// bytes it is simply the length of the token.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace thimble {

class ByteTable {
 public:
  // `model_vocab`: rows of the model's embedding, at least the tokenizer's; ids beyond the tokenizer count
  // nothing. A SentencePiece model without a token for a lone space is refused: byte fallback would make
  // three bytes of one (and bits per byte 20 % too good).
  ByteTable(const Tokenizer& tokenizer, TokenId model_vocab);

  std::size_t size() const { return bytes_.size(); }

  // Of `target` when it follows `previous`.
  std::uint32_t bytes(TokenId previous, TokenId target) const {
    const auto p = static_cast<std::size_t>(previous), t = static_cast<std::size_t>(target);
    return bytes_[t] + (leading_space_[t] && !boundary_[p] ? 1u : 0u);
  }

  // Of all tokens but the first, each after the one before it.
  std::uint64_t total(std::span<const TokenId> ids) const;

 private:
  std::vector<std::uint32_t> bytes_;
  std::vector<std::uint8_t> leading_space_, boundary_;
};

}  // namespace thimble
