// Splits input files into records: pieces of text, lines of .jsonl files, or elements of a JSON
// array. Splitting is fast and runs on one thread; all threads parse (data/document.h).
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

// One input of `data build`: a file, folder or pattern, with an optional weight.
//
//   books/            a folder, recursively, sorted by name
//   'chats/*.jsonl'   a pattern
//   wiki.txt.zst:2.5  a weight: every document twice, and half of the documents a third time
//
// Sources without weights are read one after the other. If any source has a weight, all are
// interleaved in proportion.
struct DataSource {
  std::string name;  // the input without the weight
  std::vector<std::filesystem::path> files = {};
  double weight = 1;
  bool weighted = false;  // a weight was given
};

// Finds the files of an input. Throws if there are none, or if a file has an unsupported type.
DataSource find_source(std::string_view input);

// Reads the elements of one large JSON array, such as Alpaca's files, one at a time. A file that
// does not begin with '[' is read as a sequence of values, as in JSON lines. The elements are
// located but not validated; the caller parses them.
class JsonElements {
 public:
  // `name` is used in error messages. An element longer than `max_bytes` is an error.
  JsonElements(ByteStream& stream, std::string name, std::size_t max_bytes);

  struct Element {
    std::string_view text;   // valid until the next call
    std::uint64_t line = 1;  // where it begins
  };
  std::optional<Element> next();

 private:
  bool more(std::size_t at);                 // whether byte `at` exists; reads more input if needed
  char skip_space();                         // returns the byte after white space, '\0' at the end
  std::size_t element_end();                 // end of the element that begins at begin_
  std::size_t quoted_end(std::size_t open);  // position after the closing quote
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
  const std::filesystem::path* file = nullptr;  // owned by the RecordReader
  std::uint64_t line = 1;                       // line in the file where it begins
  // Long texts are split into pieces. `context` is the last word of the previous piece if the cut
  // is one that no token crosses; the piece then begins with a space.
  bool starts = true, ends = true;
  std::string context = {};
  bool in_code = false;  // the piece begins inside a fenced Markdown code block
};

// Maximum size of a piece of text. A JSON value is not split and must fit in memory several times.
inline constexpr std::size_t kMaxTextPieceBytes = std::size_t{4} << 20;
inline constexpr std::size_t kMaxJsonBytes = std::size_t{64} << 20;

// The last word of a text: at most 32 ASCII letters and digits. Empty if there is none.
std::string_view last_word(std::string_view text);

// The records of one file.
class FileRecords {
 public:
  virtual ~FileRecords() = default;
  virtual std::optional<Record> next() = 0;
  virtual std::uint64_t stored_bytes_read() const = 0;
};

// A supported file type: how it is recognized and split into records. To add one, write a
// FileRecords class and add a line to file_forms().
struct FileForm {
  std::string_view name;
  int id;                                     // part of the digest of built data: must never change
  std::span<const std::string_view> endings;  // lower case, without .zst or .gz, e.g. ".jsonl"
  bool json;                                  // records are JSON values, not pieces of text
  std::unique_ptr<FileRecords> (*open)(const std::filesystem::path& file, DocumentSplit split);
};

// The first form is text, the second JSON lines. For an unknown ending form_of() returns text, or
// JSON lines if `chat` is set.
std::span<const FileForm> file_forms();
const FileForm& text_form();

const FileForm& form_of(const std::filesystem::path& file, bool chat,
                        std::span<const FileForm> forms = file_forms());

class RecordReader {
 public:
  // `cuts` are positions in the concatenated records of the source, in bytes, at most one in each
  // document. A document that contains one is split in two there, or at the start of the UTF-8
  // character that contains it.
  RecordReader(const DataSource& source, DocumentSplit split, bool chat, std::vector<std::uint64_t> cuts = {},
               std::span<const FileForm> forms = file_forms());

  std::optional<Record> next();
  std::uint64_t stored_bytes_read() const;  // over all files

 private:
  bool open_next_file();
  Record split_at(Record record, std::size_t at);

  const std::vector<std::filesystem::path>& files_;
  DocumentSplit split_;
  bool chat_;
  std::vector<std::uint64_t> cuts_;
  std::size_t next_cut_ = 0;
  std::span<const FileForm> forms_;
  std::size_t next_file_ = 0;
  std::uint64_t finished_bytes_ = 0;
  std::unique_ptr<FileRecords> records_;  // of the current file
  std::uint64_t text_bytes_ = 0;
  std::optional<Record> waiting_;  // the second part of a record that was cut
};

}  // namespace thimble
