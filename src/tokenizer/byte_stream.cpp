#include "tokenizer/byte_stream.h"

#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <vector>

#include "base/error.h"
#include "base/files.h"

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

// Standard input: what comes through a pipe cannot be looked at before it is read, so it is taken as plain.
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

// What both decompressors share: a buffer of stored bytes that is filled when it is empty.
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
        check(complete(), "{} is cut short: the archive does not end", file_.name());
        return 0;
      }
      if (const std::size_t made = unpack(buffer)) return made;
    }
  }

 protected:
  // Moves begin_, returns how many bytes it wrote.
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
    check(context_ != nullptr, "out of memory for {}", path.string());
  }

 private:
  std::size_t unpack(std::span<char> buffer) override {
    ZSTD_inBuffer in{stored_.data() + begin_, end_ - begin_, 0};
    ZSTD_outBuffer out{buffer.data(), buffer.size(), 0};
    const std::size_t result = ZSTD_decompressStream(context_.get(), &out, &in);
    check(!ZSTD_isError(result), "{} is not a sound zstd file: {}", name(), ZSTD_getErrorName(result));
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
    check(inflateInit2(&state_, kGzip) == Z_OK, "out of memory for {}", path.string());
  }
  ~GzipStream() override { inflateEnd(&state_); }

 private:
  std::size_t unpack(std::span<char> buffer) override {
    if (complete_) {  // another member follows, or zeros that fill up a block: gzip passes over those, too
      while (begin_ < end_ && stored_[begin_] == 0) ++begin_;
      if (begin_ == end_) return 0;
      check(inflateReset(&state_) == Z_OK, "{} cannot be read on", name());
      complete_ = false;
    }
    state_.next_in = reinterpret_cast<Bytef*>(stored_.data() + begin_);
    state_.avail_in = static_cast<uInt>(end_ - begin_);
    state_.next_out = reinterpret_cast<Bytef*>(buffer.data());
    state_.avail_out = static_cast<uInt>(std::min<std::size_t>(buffer.size(), 1u << 30));
    const uInt room = state_.avail_out;
    const int result = inflate(&state_, Z_NO_FLUSH);
    check(result == Z_OK || result == Z_STREAM_END || result == Z_BUF_ERROR,
          "{} is not a sound gzip file: {}", name(), state_.msg ? state_.msg : "damaged");
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

}  // namespace thimble
