// Reads plain, zstd and gzip files as bytes. The format is detected by content, not by file name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"
#include "base/signals.h"
#include "base/text.h"
#include "tokenizer/text_stream.h"

namespace thimble {

class ByteStream {
 public:
  virtual ~ByteStream() = default;

  // Returns how many bytes were read into the buffer; 0 at the end. A damaged or truncated archive
  // is an Error that contains the file name.
  virtual std::size_t read(std::span<char> buffer) = 0;
  // Bytes of the file as stored (compressed), for progress.
  virtual std::uint64_t stored_bytes_read() const = 0;
};

// "-" is standard input.
std::unique_ptr<ByteStream> open_byte_stream(const std::filesystem::path& path);

// Reads a stream in steps that start small and double: short files need no large buffer.
class GrowingReads {
 public:
  static constexpr std::size_t kFirstBytes = 1 << 14, kMostBytes = 1 << 20;

  // Appends the next bytes to `text`; returns false at the end.
  bool append(ByteStream& stream, std::string& text);

 private:
  std::size_t bytes_ = kFirstBytes;
};

// Text files as a stream of documents. Reads plain, .zst and .gz files, and folders recursively.
// Only one document or piece is in memory at a time.

enum class DocumentSplit {
  line,         // each line, without its line end
  blank_line,   // separated by empty lines; the line end before the empty line is not included
  file,         // each file
  end_of_text,  // separated by "<|endoftext|>"; a line end directly after the separator is removed
};
std::string_view name_of(DocumentSplit split);
std::optional<DocumentSplit> document_split_with_name(std::string_view name);

struct TextSourceOptions {
  DocumentSplit split = DocumentSplit::end_of_text;
  bool keep_line_end = false;  // for lines: Hugging Face's trainer includes it
  // Longer documents are returned in pieces (see TextDocument::starts) to bound memory use. The
  // cuts depend only on the document.
  std::uint64_t max_piece_bytes = 64 << 20;
  std::unique_ptr<ByteStream> (*open)(const std::filesystem::path& file) = open_byte_stream;
};

class TextSource final : public TextStream {
 public:
  // Folders are walked in name order; hidden files are skipped. Throws if there are no files. A
  // file with a zero byte near its start is an error when it is reached.
  TextSource(const std::vector<std::filesystem::path>& inputs, TextSourceOptions options);

  // The next non-empty document or piece of one; nullopt at the end.
  std::optional<TextDocument> next() override;

  const std::vector<std::filesystem::path>& files() const { return files_; }
  std::size_t file_count() const override { return files_.size(); }
  std::uint64_t stored_bytes() const override { return stored_bytes_; }  // stored size of all files
  std::uint64_t stored_bytes_read() const override;
  std::uint64_t text_bytes() const override { return text_bytes_; }  // returned so far

 private:
  struct Cut {
    std::size_t text_end, next;  // end of the document, start of the next one
  };
  std::optional<Cut> find_cut(std::size_t from) const;
  std::size_t known_end(const std::optional<Cut>& cut) const;
  void skip_empty_lines();
  void fill();
  bool open_next_file();
  std::optional<TextDocument> take_document(std::size_t text_end, std::size_t next, bool whole);

  std::vector<std::filesystem::path> files_;
  TextSourceOptions options_;
  std::uint64_t stored_bytes_ = 0, finished_bytes_ = 0, text_bytes_ = 0;
  std::size_t next_file_ = 0;
  std::unique_ptr<ByteStream> stream_;  // of the current file; null between files
  GrowingReads reads_;                  // of stream_
  bool file_ended_ = true;
  std::string buffer_;
  std::size_t begin_ = 0;     // of the data not returned yet
  std::size_t searched_ = 0;  // no separator starts before this index
  bool inside_ = false;       // a piece of the current document has been returned
  std::uint64_t line_ = 1;    // line number of begin_
};

// An input that may be a pipe: <(zcat a.gz), /dev/stdin, "-". Inputs are read several times, so a
// pipe is copied to a temporary file, which the destructor removes. The name of the copy ends in
// .json or .jsonl if its content looks like that. Other inputs are used as they are.
class SpooledInput {
 public:
  explicit SpooledInput(std::string input, const Interrupt* interrupt = nullptr);
  const std::string& name() const { return name_; }  // what to read instead of `input`

 private:
  std::optional<TemporaryFolder> folder_;
  std::string name_;
};

// The first bytes of the file, decompressed; fewer if it is shorter.
std::string start_of(const std::filesystem::path& file, std::size_t bytes);

// Whether the first character of the text is '{', or its first two are "[{".
bool begins_like_json(const std::filesystem::path& file);

// Why the start of a file is not text: "it contains zero bytes"; empty if it is.
std::string_view not_text(std::string_view start);

// Replaces each folder by the regular, non-hidden files below it, sorted.
std::vector<std::filesystem::path> text_files(const std::vector<std::filesystem::path>& inputs);

// Reads and decompresses a complete file, or reads a pipe. More than `max_bytes` is an error.
std::string read_text_file(const std::filesystem::path& path, std::uint64_t max_bytes = 1 << 30);

}  // namespace thimble
