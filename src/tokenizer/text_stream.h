// A text as a stream of documents: what tokenizers are trained on and measured by. data/text_files.h reads files as one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace thimble {

struct TextDocument {
  std::string_view text;   // valid until the next call
  bool starts = true;      // the first piece of its document
  bool ends = true;        // the last one
  std::uint64_t line = 1;  // of its file, where the piece begins
};

class TextStream {
 public:
  virtual ~TextStream() = default;

  // The next document that is not empty, or the next piece of one; nothing at the end.
  virtual std::optional<TextDocument> next() = 0;

  virtual std::size_t file_count() const = 0;
  virtual std::uint64_t stored_bytes() const = 0;       // of all files, as they lie on the disk
  virtual std::uint64_t stored_bytes_read() const = 0;  // for progress
  virtual std::uint64_t text_bytes() const = 0;         // handed out so far
};

}  // namespace thimble
