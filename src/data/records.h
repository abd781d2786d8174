// The raw documents of some files, one after the other, before anybody looks inside: stretches of text, lines
// of .jsonl files, elements of a JSON array. Cutting them out is quick and done by one thread; what is inside is
// found out by all (data/document.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/json_elements.h"
#include "data/sources.h"
#include "tokenizer/text_source.h"

namespace thimble {

struct Record {
  std::string raw;  // text, or one JSON value
  bool json = false;
  const std::filesystem::path* file = nullptr;  // of the reader, who lives longer
  std::uint64_t line = 1;                       // of the file, where it begins
  // A long text comes in pieces. `context` is the last word of the piece before, where they were cut at a place
  // that every tokenizer cuts at; the piece then begins with a space.
  bool starts = true, ends = true;
  std::string context = {};
  bool in_code = false;  // the piece begins between two fences of Markdown
};

// Pieces of texts; JSON values must fit in memory several times.
inline constexpr std::size_t kMaxTextPieceBytes = std::size_t{4} << 20;
inline constexpr std::size_t kMaxJsonBytes = std::size_t{64} << 20;

// The word that ends a text: at most 32 ASCII letters and digits. Empty when there is none.
std::string_view last_word(std::string_view text);

class RecordReader {
 public:
  // `cut_at`: the text is one document and a new one begins at this byte (or before it, where its character
  // does).
  RecordReader(const DataSource& source, DocumentSplit split, bool chat,
               std::optional<std::uint64_t> cut_at = std::nullopt);

  std::optional<Record> next();
  std::uint64_t stored_bytes_read() const;  // of all files

 private:
  bool open_next_file();
  std::optional<Record> next_in_file();
  std::optional<Record> next_text();
  std::optional<Record> cut_in_two(Record& record);

  const std::vector<std::filesystem::path>& files_;
  DocumentSplit split_;
  bool chat_;
  std::optional<std::uint64_t> cut_at_;
  std::size_t next_file_ = 0;
  FileForm form_ = FileForm::text;
  std::uint64_t finished_bytes_ = 0;
  std::unique_ptr<TextSource> text_;    // of the current file, text or lines
  std::unique_ptr<ByteStream> stream_;  // of the current file, a JSON array
  std::unique_ptr<JsonElements> elements_;
  std::string context_;   // of the next piece,
  bool in_code_ = false;  // and where it begins
  std::uint64_t text_bytes_ = 0;
  std::optional<Record> waiting_;  // the second half of a record that was cut
};

}  // namespace thimble
