#include "data/text_files.h"

#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "base/text.h"
#include "data/parquet.h"
#include "tokenizer/unicode.h"

namespace thimble {

namespace {

class StoredFile {
 public:
  explicit StoredFile(const std::filesystem::path& path) : file_(path) {}

  std::size_t read(std::span<char> buffer) {
    const std::size_t count = file_.read_some_at(at_, std::as_writable_bytes(buffer));
    at_ += count;
    return count;
  }
  std::uint64_t at() const { return at_; }
  std::string name() const { return file_.path().string(); }

 private:
  InputFile file_;
  std::uint64_t at_ = 0;
};

class PlainStream final : public ByteStream {
 public:
  explicit PlainStream(const std::filesystem::path& path) : file_(path) {}
  std::size_t read(std::span<char> buffer) override { return file_.read(buffer); }
  std::uint64_t stored_bytes_read() const override { return file_.at(); }

 private:
  StoredFile file_;
};

// Standard input, as plain bytes: a pipe cannot be inspected before it is read.
class StandardInput final : public ByteStream {
 public:
  std::size_t read(std::span<char> buffer) override {
    ssize_t count = -1;
    do count = ::read(STDIN_FILENO, buffer.data(), buffer.size());
    while (count < 0 && errno == EINTR);
    if (count < 0) throw FileError("read", "standard input", errno);
    bytes_ += static_cast<std::uint64_t>(count);
    return static_cast<std::size_t>(count);
  }
  std::uint64_t stored_bytes_read() const override { return bytes_; }

 private:
  std::uint64_t bytes_ = 0;
};

// Common part of both decompressors: a buffer of compressed bytes that is refilled when empty.
class PackedStream : public ByteStream {
 public:
  explicit PackedStream(const std::filesystem::path& path) : file_(path), stored_(1 << 17) {}
  std::uint64_t stored_bytes_read() const override { return file_.at(); }

  std::size_t read(std::span<char> buffer) override {
    while (true) {
      if (begin_ == end_ && !ended_) {
        begin_ = 0;
        end_ = file_.read(stored_);
        ended_ = end_ == 0;
      }
      if (begin_ == end_ && ended_) {
        check(complete(), "{} is truncated: the compressed data ends too early", file_.name());
        return 0;
      }
      if (const std::size_t made = unpack(buffer)) return made;
    }
  }

 protected:
  // Decompresses from begin_, advances it, and returns how many bytes it wrote.
  virtual std::size_t unpack(std::span<char> buffer) = 0;
  virtual bool complete() const = 0;
  std::string name() const { return file_.name(); }

  StoredFile file_;
  std::vector<char> stored_;
  std::size_t begin_ = 0, end_ = 0;
  bool ended_ = false;
};

class ZstdStream final : public PackedStream {
 public:
  explicit ZstdStream(const std::filesystem::path& path) : PackedStream(path), context_(ZSTD_createDCtx()) {
    check(context_ != nullptr, "out of memory while opening {}", path.string());
  }

 private:
  std::size_t unpack(std::span<char> buffer) override {
    ZSTD_inBuffer in{stored_.data() + begin_, end_ - begin_, 0};
    ZSTD_outBuffer out{buffer.data(), buffer.size(), 0};
    const std::size_t result = ZSTD_decompressStream(context_.get(), &out, &in);
    check(!ZSTD_isError(result), "{} is not a valid zstd file: {}", name(), ZSTD_getErrorName(result));
    begin_ += in.pos;
    complete_ = result == 0;
    return out.pos;
  }
  bool complete() const override { return complete_; }

  struct Free {
    void operator()(ZSTD_DCtx* context) const { ZSTD_freeDCtx(context); }
  };
  std::unique_ptr<ZSTD_DCtx, Free> context_;
  bool complete_ = true;
};

class GzipStream final : public PackedStream {
 public:
  explicit GzipStream(const std::filesystem::path& path) : PackedStream(path) {
    constexpr int kGzip = 16 + MAX_WBITS;
    check(inflateInit2(&state_, kGzip) == Z_OK, "out of memory while opening {}", path.string());
  }
  ~GzipStream() override { inflateEnd(&state_); }

 private:
  std::size_t unpack(std::span<char> buffer) override {
    if (complete_) {  // another member or zero padding follows; gzip skips the zeros
      while (begin_ < end_ && stored_[begin_] == 0) ++begin_;
      if (begin_ == end_) return 0;
      check(inflateReset(&state_) == Z_OK, "{}: cannot reset the gzip decoder", name());
      complete_ = false;
    }
    state_.next_in = reinterpret_cast<Bytef*>(stored_.data() + begin_);
    state_.avail_in = static_cast<uInt>(end_ - begin_);
    state_.next_out = reinterpret_cast<Bytef*>(buffer.data());
    state_.avail_out = static_cast<uInt>(std::min<std::size_t>(buffer.size(), 1u << 30));
    const uInt room = state_.avail_out;
    const int result = inflate(&state_, Z_NO_FLUSH);
    check(result == Z_OK || result == Z_STREAM_END || result == Z_BUF_ERROR,
          "{} is not a valid gzip file: {}", name(), state_.msg ? state_.msg : "damaged");
    begin_ = end_ - state_.avail_in;
    complete_ = result == Z_STREAM_END;
    return room - state_.avail_out;
  }
  bool complete() const override { return complete_; }

  z_stream state_{};
  bool complete_ = false;
};

}  // namespace

std::unique_ptr<ByteStream> open_byte_stream(const std::filesystem::path& path) {
  if (path == "-") return std::make_unique<StandardInput>();
  std::array<unsigned char, 4> magic{};
  const std::size_t count =
      InputFile(path).read_some_at(0, std::as_writable_bytes(std::span<unsigned char>(magic)));
  if (count == 4 && magic == std::array<unsigned char, 4>{0x28, 0xB5, 0x2F, 0xFD})
    return std::make_unique<ZstdStream>(path);
  if (count >= 2 && magic[0] == 0x1F && magic[1] == 0x8B) return std::make_unique<GzipStream>(path);
  return std::make_unique<PlainStream>(path);
}

bool GrowingReads::append(ByteStream& stream, std::string& text) {
  const std::size_t size = text.size();
  text.resize(size + bytes_);
  const std::size_t count = stream.read({text.data() + size, bytes_});
  text.resize(size + count);
  bytes_ = std::min(2 * bytes_, kMostBytes);
  return count > 0;
}

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kEndOfText = "<|endoftext|>";
constexpr std::size_t kSeparatorBytes = kEndOfText.size() + 1;  // may be incomplete
constexpr std::array<std::string_view, 4> kSplitNames = {"line", "blank-line", "file", "endoftext"};

void check_is_text(std::string_view text, const fs::path& file) {
  const std::string_view reason = not_text(text);
  check(reason.empty(), Hint{"convert it to UTF-8 text, .jsonl or .json, plain or compressed as .zst or .gz"},
        "{} is not a text file: {}", file.string(), reason);
}

bool is_hidden(const fs::path& path) {
  return path.filename().string().starts_with('.');
}

void add_folder(const fs::path& folder, std::vector<fs::path>& files) {
  std::vector<fs::path> found;
  for (auto entry = fs::recursive_directory_iterator(folder); entry != fs::recursive_directory_iterator();
       ++entry) {
    if (is_hidden(entry->path())) {
      if (entry->is_directory()) entry.disable_recursion_pending();
      continue;
    }
    if (entry->is_regular_file()) found.push_back(entry->path());
  }
  std::sort(found.begin(), found.end());
  files.insert(files.end(), found.begin(), found.end());
}

}  // namespace

std::string_view not_text(std::string_view start) {
  constexpr std::size_t kInspectedBytes = 4096;
  return start.substr(0, kInspectedBytes).find('\0') == start.npos ? "" : "it contains zero bytes";
}

std::string_view name_of(DocumentSplit split) {
  return kSplitNames[static_cast<std::size_t>(split)];
}

std::optional<DocumentSplit> document_split_with_name(std::string_view name) {
  for (std::size_t i = 0; i < kSplitNames.size(); ++i)
    if (kSplitNames[i] == name) return static_cast<DocumentSplit>(i);
  return std::nullopt;
}

std::vector<fs::path> text_files(const std::vector<fs::path>& inputs) {
  std::vector<fs::path> files;
  for (const fs::path& input : inputs) {
    check(fs::exists(input), "{} does not exist", input.string());
    if (fs::is_directory(input)) {
      const std::size_t before = files.size();
      add_folder(input, files);
      check(files.size() > before, "the folder {} contains no files", input.string());
    } else {
      files.push_back(input);
    }
  }
  check(!files.empty(), "no text files given");
  return files;
}

std::string start_of(const fs::path& file, std::size_t bytes) {
  std::string start(bytes, '\0');
  std::size_t size = 0;
  const auto stream = open_byte_stream(file);
  while (size < bytes) {
    const std::size_t count = stream->read(std::span(start).subspan(size));
    if (count == 0) break;
    size += count;
  }
  start.resize(size);
  return start;
}

bool begins_like_json(const fs::path& file) {
  constexpr std::size_t kInspectedBytes = 256;
  const std::string start = start_of(file, kInspectedBytes);
  std::string_view text = start;
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  text = trim(text);
  if (text.starts_with('[')) text = trim(text.substr(1));
  return text.starts_with('{');
}

namespace {

void copy_pipe(const fs::path& from, const fs::path& to, const Interrupt* interrupt) {
  struct Descriptor {
    int id;
    ~Descriptor() {
      if (id >= 0) ::close(id);
    }
  };
  // Opened in blocking mode, because the writer may not have opened the pipe yet.
  const Descriptor pipe{::open(from.c_str(), O_RDONLY | O_CLOEXEC)};
  if (pipe.id < 0) throw FileError("open", from, errno);
  PosixFileOps ops;
  AtomicFile file(ops, to, Existing::refuse);
  std::vector<char> buffer(1 << 18);
  ssize_t count = 0;
  do {
    if (interrupt) interrupt->throw_if_interrupted();
    count = ::read(pipe.id, buffer.data(), buffer.size());
    if (count < 0 && errno != EINTR) throw FileError("read", from, errno);
    if (count > 0) file.write(std::string_view(buffer.data(), static_cast<std::size_t>(count)));
  } while (count != 0);
  file.commit();
}

// The ending for a file of this content: ".jsonl" for one JSON array per line, ".json" for other
// JSON, ".parquet" for Parquet, "" for text.
std::string ending_for(const fs::path& file) {
  constexpr std::size_t kInspectedBytes = 1 << 20;
  if (is_parquet(file)) return ".parquet";
  if (!begins_like_json(file)) return "";
  std::string start(kInspectedBytes, '\0');
  start.resize(open_byte_stream(file)->read(start));
  return trim(start).starts_with('[') && start.find("\n[") != start.npos ? ".jsonl" : ".json";
}

}  // namespace

SpooledInput::SpooledInput(std::string input, const Interrupt* interrupt) : name_(std::move(input)) {
  const fs::path path = name_ == "-" ? "/dev/stdin" : name_;
  std::error_code missing;
  const fs::file_type type = fs::status(path, missing).type();
  // A redirected file (< chats.jsonl) is read under its own name, whose ending tells its form.
  if (type == fs::file_type::regular && path.string().starts_with("/dev/")) {
    const fs::path target = fs::canonical(path, missing);
    name_ = (missing ? path : target).string();
  }
  if (type != fs::file_type::fifo && type != fs::file_type::socket) return;
  folder_.emplace();
  const fs::path copy = folder_->path() / (path == "/dev/stdin" ? "stdin" : "pipe");
  copy_pipe(path, copy, interrupt);
  name_ = copy.string() + ending_for(copy);
  PosixFileOps().rename(copy, name_);
}

std::string read_text_file(const fs::path& path, std::uint64_t max_bytes) {
  if (is_pipe(path)) return read_file_or_pipe(path, max_bytes);
  const auto stream = open_byte_stream(path);
  GrowingReads reads;
  std::string text;
  while (reads.append(*stream, text))
    check(text.size() <= max_bytes, "{} is larger than {} bytes", path.string(), max_bytes);
  return text;
}

TextSource::TextSource(const std::vector<fs::path>& inputs, TextSourceOptions options)
    : files_(text_files(inputs)), options_(options) {
  std::error_code ignored;  // a pipe has no size
  for (const fs::path& file : files_)
    if (const auto size = fs::file_size(file, ignored); !ignored) stored_bytes_ += size;
}

std::uint64_t TextSource::stored_bytes_read() const {
  return finished_bytes_ + (stream_ ? stream_->stored_bytes_read() : 0);
}

bool TextSource::open_next_file() {
  if (stream_) finished_bytes_ += stream_->stored_bytes_read();
  stream_.reset();
  if (next_file_ == files_.size()) return false;
  stream_ = options_.open(files_[next_file_++]);
  reads_ = {};
  file_ended_ = false;
  buffer_.clear();
  begin_ = searched_ = 0;
  inside_ = false;
  line_ = 1;
  while (!file_ended_ && buffer_.size() < kByteOrderMark.size()) fill();
  check_is_text(buffer_, files_[next_file_ - 1]);
  if (buffer_.starts_with(kByteOrderMark)) begin_ = searched_ = kByteOrderMark.size();
  return true;
}

// Reads more of the current file, or sets file_ended_.
void TextSource::fill() {
  buffer_.erase(0, begin_);
  searched_ -= begin_;
  begin_ = 0;
  file_ended_ = !reads_.append(*stream_, buffer_);
}

std::optional<TextSource::Cut> TextSource::find_cut(std::size_t from) const {
  switch (options_.split) {
    case DocumentSplit::file:
      return std::nullopt;
    case DocumentSplit::line: {
      const std::size_t end = buffer_.find('\n', from);
      if (end == buffer_.npos) return std::nullopt;
      const bool carriage_return = end > begin_ && buffer_[end - 1] == '\r';
      return Cut{options_.keep_line_end ? end + 1 : end - (carriage_return ? 1 : 0), end + 1};
    }
    case DocumentSplit::blank_line: {
      for (std::size_t end = from; (end = buffer_.find('\n', end)) != buffer_.npos; ++end) {
        std::size_t next = end + 1;
        if (next < buffer_.size() && buffer_[next] == '\r') ++next;
        if (next == buffer_.size() || buffer_[next] != '\n') continue;
        const bool carriage_return = end > begin_ && buffer_[end - 1] == '\r';
        return Cut{end - (carriage_return ? 1 : 0), next + 1};
      }
      return std::nullopt;
    }
    case DocumentSplit::end_of_text: {
      const std::size_t end = buffer_.find(kEndOfText, from);
      if (end == buffer_.npos) return std::nullopt;
      const std::size_t next = end + kEndOfText.size();
      const std::string_view behind = std::string_view(buffer_).substr(next, 2);
      if ((behind.empty() || behind == "\r") && !file_ended_)
        return std::nullopt;  // undecided until more is read
      return Cut{end, next + (behind.starts_with('\n') ? 1 : behind == "\r\n" ? 2 : 0)};
    }
  }
  return std::nullopt;
}

// The current document contains at least the bytes before this index: they are not cut off and
// cannot be the start of a separator.
std::size_t TextSource::known_end(const std::optional<Cut>& cut) const {
  if (cut) return cut->text_end;
  return file_ended_ ? buffer_.size() : buffer_.size() - std::min(buffer_.size(), kSeparatorBytes);
}

void TextSource::skip_empty_lines() {
  while (true) {
    const std::string_view rest = std::string_view(buffer_).substr(begin_, 2);
    if (!rest.starts_with('\n') && rest != "\r\n") return;
    begin_ += rest.starts_with('\n') ? 1 : 2;
    ++line_;
  }
}

std::optional<TextDocument> TextSource::take_document(std::size_t text_end, std::size_t next, bool whole) {
  const std::string_view text = std::string_view(buffer_).substr(begin_, text_end - begin_);
  const std::uint64_t line = line_;
  line_ += static_cast<std::uint64_t>(std::count(buffer_.begin() + static_cast<std::ptrdiff_t>(begin_),
                                                 buffer_.begin() + static_cast<std::ptrdiff_t>(next), '\n'));
  begin_ = searched_ = next;
  const bool starts = !inside_;
  inside_ = !whole;
  if (text.empty()) return std::nullopt;
  text_bytes_ += text.size();
  return TextDocument{text, starts, whole, line};
}

std::optional<TextDocument> TextSource::next() {
  while (true) {
    if (options_.split == DocumentSplit::blank_line && !inside_) skip_empty_lines();
    std::optional<TextDocument> document;
    const auto cut = find_cut(std::max(searched_, begin_));
    if (known_end(cut) > begin_ + options_.max_piece_bytes) {
      const std::size_t limit = begin_ + options_.max_piece_bytes;
      std::size_t end = safe_cut(buffer_, begin_, limit);
      if (end == 0) end = character_boundary(buffer_, limit);
      document = take_document(end, end, false);
    } else if (cut) {
      document = take_document(cut->text_end, cut->next, true);
    } else if (!file_ended_) {
      // The last bytes may begin a separator, so they are searched again after fill().
      searched_ = std::max(begin_, known_end(cut));
      fill();
    } else if (begin_ < buffer_.size()) {
      document = take_document(buffer_.size(), buffer_.size(), true);
    } else if (!open_next_file()) {
      return std::nullopt;
    }
    if (document) return document;
  }
}

}  // namespace thimble
