// A text as a stream of documents, used to train and measure tokenizers. data/text_files.h
// implements it for files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace thimble {

struct TextDocument {
  std::string_view text;   // valid until the next call
  bool starts = true;      // first piece of its document
  bool ends = true;        // last piece of its document
  std::uint64_t line = 1;  // in its file, where the piece begins
};

class TextStream {
 public:
  virtual ~TextStream() = default;

  // The next non-empty document or piece of one; nullopt at the end.
  virtual std::optional<TextDocument> next() = 0;

  virtual std::size_t file_count() const = 0;
  virtual std::uint64_t stored_bytes() const = 0;       // stored size of all files
  virtual std::uint64_t stored_bytes_read() const = 0;  // for progress
  virtual std::uint64_t text_bytes() const = 0;         // returned so far
};

}  // namespace thimble
