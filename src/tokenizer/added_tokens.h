// Added tokens: strings that are one token wherever they stand, found before anything else happens to the
// text.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/bpe_spec.h"

namespace thimble {

// A stretch of a text: one added token, or (id -1) what lies between.
struct TextSegment {
  TokenId id = -1;
  std::string_view text;
};

class AddedTokenFinder {
 public:
  explicit AddedTokenFinder(std::vector<AddedToken> tokens);

  bool empty() const { return tokens_.empty(); }
  bool finds_without_trust() const { return plain_ > 0; }

  // The text cut at every added token: leftmost first, longest of those. Special ones only if trusted.
  std::vector<TextSegment> split(std::string_view text, bool trusted) const;

 private:
  std::size_t next_start(std::string_view text, std::size_t at) const;
  const AddedToken* longest_at(std::string_view text, std::size_t at) const;

  std::vector<AddedToken> tokens_;          // by first byte, longest first
  std::array<std::uint32_t, 257> first_{};  // tokens_[first_[b]] .. tokens_[first_[b + 1]] start with byte b
  std::size_t plain_ = 0;                   // not special
};

}  // namespace thimble
