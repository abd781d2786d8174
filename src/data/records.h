// The raw documents of some files, one after the other, before anybody looks inside: stretches of text, lines
// of .jsonl files, elements of a JSON array. Cutting them out is quick and done by one thread; what is inside is
// found out by all (data/document.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/text_files.h"

namespace thimble {

// What `data build` is given to read: files, folders and patterns, each with a weight.
//
//   books/            a folder, with everything below it, in the order of names
//   'chats/*.jsonl'   a pattern
//   wiki.txt.zst:2.5  a weight: every document twice, and every second one a third time
//
// Sources without weights are read one after the other. As soon as one has a weight, all are mixed in
// proportion.
struct DataSource {
  std::string name;  // as it was given, without the weight
  std::vector<std::filesystem::path> files = {};
  double weight = 1;
  bool weighted = false;  // somebody said so
};

// Finds the files. Nothing there, and files of a kind that cannot be read, are errors.
DataSource find_source(std::string_view input);

// The elements of one big JSON array, read one at a time: Alpaca's files are such arrays. A file that does not
// begin with '[' is taken for values one after the other, as in JSON lines. Elements are cut out, not checked:
// whoever parses them does that.
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

// The records of one file.
class FileRecords {
 public:
  virtual ~FileRecords() = default;
  virtual std::optional<Record> next() = 0;
  virtual std::uint64_t stored_bytes_read() const = 0;
};

// A kind of file that is read here: how it is known, and how it comes apart into records. A new one is a class and
// its line in file_forms().
struct FileForm {
  std::string_view name;
  int id;                                     // stands in the digests of built data: never changes
  std::span<const std::string_view> endings;  // ".jsonl"; of a name without .zst or .gz, in small letters
  bool json;                                  // records are JSON values, not stretches of text
  std::unique_ptr<FileRecords> (*open)(const std::filesystem::path& file, DocumentSplit split);
};

// Text first, then JSON lines: what no ending tells is text, or, of chats, JSON lines.
std::span<const FileForm> file_forms();
const FileForm& text_form();

const FileForm& form_of(const std::filesystem::path& file, bool chat,
                        std::span<const FileForm> forms = file_forms());

class RecordReader {
 public:
  // `cut_at`: the text is one document and a new one begins at this byte (or before it, where its character
  // does).
  RecordReader(const DataSource& source, DocumentSplit split, bool chat,
               std::optional<std::uint64_t> cut_at = std::nullopt,
               std::span<const FileForm> forms = file_forms());

  std::optional<Record> next();
  std::uint64_t stored_bytes_read() const;  // of all files

 private:
  bool open_next_file();
  std::optional<Record> cut_in_two(Record& record);

  const std::vector<std::filesystem::path>& files_;
  DocumentSplit split_;
  bool chat_;
  std::optional<std::uint64_t> cut_at_;
  std::span<const FileForm> forms_;
  std::size_t next_file_ = 0;
  std::uint64_t finished_bytes_ = 0;
  std::unique_ptr<FileRecords> records_;  // of the current file
  std::uint64_t text_bytes_ = 0;
  std::optional<Record> waiting_;  // the second half of a record that was cut
};

}  // namespace thimble
