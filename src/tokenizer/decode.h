// Decoders of tokenizer.json that are not byte-level: what a token adds to the text.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/bpe_spec.h"
#include "tokenizer/regex.h"

namespace thimble {

// The steps, worked out token by token, so that a stream of tokens needs no memory of its past. A Strip after
// Fuse (that is, of the whole text) concerns the first token only; at the end of a text it is refused.
class TokenDecoder {
 public:
  explicit TokenDecoder(const std::vector<DecoderStep>& steps);

  // `token` as the vocabulary spells it.
  void append(std::string_view token, bool first, std::string& text) const;

 private:
  struct Step {
    DecoderStep step;
    std::shared_ptr<const Regex> regex;
    bool first_only = false;  // comes after Fuse
  };
  std::vector<Step> steps_;
};

}  // namespace thimble
