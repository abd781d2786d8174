// The plain bytes of a file, whether it is stored as it is, as zstd or as gzip. The content decides, not the
// name.
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

#include "tokenizer/text_stream.h"

namespace thimble {

// What some programs write before a text in UTF-8. It is no part of the text.
inline constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

class ByteStream {
 public:
  virtual ~ByteStream() = default;

  // How many bytes were read into the buffer; 0 at the end. A damaged or cut archive is an Error that names
  // the file.
  virtual std::size_t read(std::span<char> buffer) = 0;
  // Of the file, as it is stored: for progress.
  virtual std::uint64_t stored_bytes_read() const = 0;
};

// "-" is standard input.
std::unique_ptr<ByteStream> open_byte_stream(const std::filesystem::path& path);

// Reads a stream in steps that begin small and double: a short file does not cost a buffer for a long one.
class GrowingReads {
 public:
  static constexpr std::size_t kFirstBytes = 1 << 14, kMostBytes = 1 << 20;

  // Appends what comes next; false at the end.
  bool append(ByteStream& stream, std::string& text);

 private:
  std::size_t bytes_ = kFirstBytes;
};

// Text files as a stream of documents: plain, .zst or .gz, folders with everything below them. Memory holds
// one document, however large the files are.

enum class DocumentSplit {
  line,         // each line is one; the line end is not part of it
  blank_line,   // stretches without an empty line; the line end before one is not part of them
  file,         // a whole file
  end_of_text,  // what stands between "<|endoftext|>" and the next; the line end after it belongs to it
};
std::string_view name_of(DocumentSplit split);
std::optional<DocumentSplit> document_split_with_name(std::string_view name);

struct TextSourceOptions {
  DocumentSplit split = DocumentSplit::end_of_text;
  bool keep_line_end = false;  // of lines: Hugging Face's trainer sees them
  // A longer document is handed out in pieces (TextDocument::starts tells), so that nothing has to fit in
  // memory. Where it is cut depends on the document alone.
  std::uint64_t max_piece_bytes = 64 << 20;
};

class TextSource final : public TextStream {
 public:
  // Folders are walked in the order of names; hidden files are left out. No file at all is an error.
  TextSource(const std::vector<std::filesystem::path>& inputs, TextSourceOptions options);

  // The next document that is not empty, or the next piece of one; nothing at the end.
  std::optional<TextDocument> next() override;

  const std::vector<std::filesystem::path>& files() const { return files_; }
  std::size_t file_count() const override { return files_.size(); }
  std::uint64_t stored_bytes() const override {
    return stored_bytes_;
  }  // of all files, as they lie on the disk
  std::uint64_t stored_bytes_read() const override;
  std::uint64_t text_bytes() const override { return text_bytes_; }  // handed out so far

 private:
  struct Cut {
    std::size_t text_end, next;  // the document's end, and where the next one begins
  };
  std::optional<Cut> find_cut(std::size_t from) const;
  std::size_t known_end(const std::optional<Cut>& cut) const;
  void skip_empty_lines();
  void fill();
  bool open_next_file();
  std::optional<TextDocument> hand_out(std::size_t text_end, std::size_t next, bool whole);

  std::vector<std::filesystem::path> files_;
  TextSourceOptions options_;
  std::uint64_t stored_bytes_ = 0, finished_bytes_ = 0, text_bytes_ = 0;
  std::size_t next_file_ = 0;
  std::unique_ptr<ByteStream> stream_;  // of the current file; null between files
  GrowingReads reads_;                  // of stream_
  bool file_ended_ = true;
  std::string buffer_;
  std::size_t begin_ = 0;     // of what has not been handed out
  std::size_t searched_ = 0;  // no cut starts before it
  bool inside_ = false;       // a piece of the current document has been handed out
  std::uint64_t line_ = 1;    // where begin_ is
};

// Everything below a folder that is a file and not hidden, sorted; a file is itself.
std::vector<std::filesystem::path> text_files(const std::vector<std::filesystem::path>& inputs);

// A whole file, unpacked. More than `max_bytes` is an error.
std::string read_text_file(const std::filesystem::path& path, std::uint64_t max_bytes = 1 << 30);

}  // namespace thimble
