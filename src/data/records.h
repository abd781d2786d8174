// Splits input files into records: pieces of text, or JSON values such as the lines of a .jsonl
// file. Files of other forms (Parquet, CSV, exports of messengers) become JSON here, so all later
// code treats them alike. Splitting is fast and runs on one thread; all threads parse
// (data/document.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/manifest.h"
#include "data/sources.h"
#include "data/text_files.h"
#include "tokenizer/chat_layout.h"

namespace thimble {

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

struct ReadOptions {
  DataKind kind = DataKind::text;
  DocumentSplit split = DocumentSplit::end_of_text;  // how to split files that are text
  std::string text_field = "text";                   // key of the text in JSON records
  bool strip_markdown = false;
  // The participant of exports of messengers that is the assistant. Empty: the likely one of each
  // file (see assistant_in() for the one of all files).
  std::string assistant = {};
  std::string layout = std::string(kRolesLayout);  // of conversations as tokens
};

// The part of a JSON record's text or conversation that belongs to the record, if the document was
// cut: as a share of its bytes.
struct RecordPart {
  double begin = 0, end = 1;
};

struct Record {
  std::string raw;  // text, or one JSON value
  bool json = false;
  const std::filesystem::path* file = nullptr;  // owned by the RecordReader
  std::uint64_t line = 1;                       // line in the file where it begins; Parquet: the row
  // Long texts are split into pieces. `context` is the last word of the previous piece if the cut
  // is one that no token crosses; the piece then begins with a space.
  bool starts = true, ends = true;
  std::string context = {};
  bool in_code = false;  // the piece begins inside a fenced Markdown code block
  RecordPart part = {};
  std::string problem = {};  // not empty: why the record is invalid, with file and line
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
  std::unique_ptr<FileRecords> (*open)(const std::filesystem::path& file, const ReadOptions& options);
  // Forms that are text: opens the file as plain text.
  std::unique_ptr<ByteStream> (*open_text)(const std::filesystem::path& file) = nullptr;
  // Forms without endings: recognizes a file of the form `by_ending` by its content.
  bool (*recognize)(const std::filesystem::path& file, const FileForm* by_ending) = nullptr;
};

// The first form is text, the second JSON lines.
std::span<const FileForm> file_forms();
const FileForm& text_form();

// The form by the ending of the name, or nullptr for an unknown ending.
const FileForm* form_by_ending(const std::filesystem::path& file,
                               std::span<const FileForm> forms = file_forms());
// The same, but for an unknown ending text, or JSON lines if `chat` is set. The file need not
// exist.
const FileForm& form_of(const std::filesystem::path& file, bool chat,
                        std::span<const FileForm> forms = file_forms());
// The form in which the file is read: as form_of(), unless its content is of another form.
const FileForm& form_in(const std::filesystem::path& file, bool chat,
                        std::span<const FileForm> forms = file_forms());

class RecordReader {
 public:
  // Reads files with an unknown ending as JSON lines if options.kind is chat, otherwise as text.
  // `cuts` are positions in the concatenated records of the source, in bytes, at most one in each
  // document. A document that contains one is split in two there, or at the start of the UTF-8
  // character that contains it. A JSON record becomes two records with the same share of its text
  // or conversation in `part`.
  RecordReader(const DataSource& source, ReadOptions options, std::vector<std::uint64_t> cuts = {},
               std::span<const FileForm> forms = file_forms());

  std::optional<Record> next();
  std::uint64_t stored_bytes_read() const;  // over all files

 private:
  bool open_next_file();
  Record split_at(Record record, std::size_t at);

  const std::vector<std::filesystem::path>& files_;
  ReadOptions options_;
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
