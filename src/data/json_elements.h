// The elements of one big JSON array, read one at a time: Alpaca's files are such arrays. A file that does not
// begin with '[' is taken for values one after the other, as in JSON lines. Elements are cut out, not checked:
// whoever parses them does that.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "tokenizer/byte_stream.h"

namespace thimble {

class JsonElements {
 public:
  // `name` is for errors; `max_bytes`: a longer element is one.
  JsonElements(ByteStream& stream, std::string name, std::size_t max_bytes);

  struct Element {
    std::string_view text;   // valid until the next call
    std::uint64_t line = 1;  // where it begins
  };
  std::optional<Element> next();

 private:
  bool more(std::size_t at);                 // is there a byte at this place? Reads on if need be.
  char skip_space();                         // to the next byte that is none; '\0' at the end
  std::size_t element_end();                 // of the one that begins at begin_
  std::size_t quoted_end(std::size_t open);  // behind the closing quote
  [[noreturn]] void fail_here(std::string_view expected, std::string_view found) const;

  ByteStream& stream_;
  GrowingReads reads_;
  std::string name_;
  std::size_t max_bytes_;
  std::string buffer_;
  std::size_t begin_ = 0;
  std::uint64_t line_ = 1;  // of begin_
  bool opened_ = false, array_ = false, first_ = true, ended_ = false;
};

}  // namespace thimble
