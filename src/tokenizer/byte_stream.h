// The plain bytes of a file, whether it is stored as it is, as zstd or as gzip. The content decides, not the
// name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

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

}  // namespace thimble
