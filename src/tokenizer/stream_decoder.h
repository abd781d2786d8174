// Text from tokens as they come, never a broken character: bytes wait until their character is whole.
#pragma once

#include <string>

#include "tokenizer/tokenizer.h"

namespace thimble {

// Takes from the front of `bytes` what can be shown, as push() and, with `all`, finish() below return it.
std::string take_text(std::string& bytes, bool all);

class StreamDecoder {
 public:
  // `starts_text`: nothing stands before the first token (SentencePiece drops a leading space there).
  explicit StreamDecoder(const Tokenizer& tokenizer, bool starts_text = true)
      : tokenizer_(tokenizer), first_(starts_text) {}

  // What can be shown now: valid UTF-8, perhaps empty. Bytes that can no longer become a character are
  // U+FFFD.
  std::string push(TokenId id);
  // The rest: a character that was never finished is U+FFFD.
  std::string finish();

 private:
  const Tokenizer& tokenizer_;
  std::string waiting_;
  bool first_;
};

}  // namespace thimble
