#include "data/shard.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace thimble {

namespace {

static_assert(std::endian::native == std::endian::little,
              "shards are little-endian and are not byte-swapped");

constexpr std::int64_t kMaxU16Vocabulary = 65536;

using Header = std::array<std::int32_t, 256>;
static_assert(sizeof(Header) == kShardHeaderBytes);

struct Magic {
  std::int32_t number, version;
};
constexpr Magic magic_of(ShardFormat format) {
  return format == ShardFormat::u16 ? Magic{20240520, 1} : Magic{20240801, 7};
}

ShardFormat format_in(const Header& header, const std::filesystem::path& path) {
  for (const ShardFormat format : {ShardFormat::u16, ShardFormat::u32}) {
    const Magic magic = magic_of(format);
    if (header[0] == magic.number && header[1] == magic.version) return format;
  }
  fail(Hint{"expected a header that begins with 20240520, 1 (uint16) or 20240801, 7 (uint32)"},
       "Unexpected shard header for {}: it begins with {}, {}", path.string(), header[0], header[1]);
}

template <class Stored>
void widen(const std::byte* from, std::span<std::int32_t> to) {
  for (std::size_t i = 0; i < to.size(); ++i) {
    Stored stored;
    std::memcpy(&stored, from + i * sizeof(Stored), sizeof(Stored));
    to[i] = static_cast<std::int32_t>(stored);
  }
}

// Maps the complete file read-only. Returns an empty span if it is shorter than a header.
std::span<const std::byte> map_file(const std::filesystem::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) throw FileError("open", path, errno);
  struct stat status {};
  const bool known = ::fstat(descriptor, &status) == 0;
  const int code = errno;
  void* bytes = MAP_FAILED;
  const auto size = static_cast<std::size_t>(status.st_size);
  const bool usable = known && S_ISREG(status.st_mode) && size >= kShardHeaderBytes;
  if (usable) bytes = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor, 0);
  const int map_code = errno;
  ::close(descriptor);
  if (!known) throw FileError("examine", path, code);
  check(S_ISREG(status.st_mode), "{} is not a regular file", path.string());
  if (!usable) return {};
  if (bytes == MAP_FAILED) throw FileError("map", path, map_code);
  return {static_cast<const std::byte*>(bytes), size};
}

}  // namespace

ShardFormat shard_format_for(std::int64_t vocab_size) {
  return vocab_size <= kMaxU16Vocabulary ? ShardFormat::u16 : ShardFormat::u32;
}

std::string shard_name(std::string_view dataset, std::string_view split, std::uint64_t index) {
  return fmt::format("{}_{}_{:06}.bin", dataset, split, index);
}

ShardWriter::ShardWriter(std::int64_t vocab_size, std::uint64_t expected_tokens)
    : vocab_size_(vocab_size), format_(shard_format_for(vocab_size)) {
  bytes_.reserve(kShardHeaderBytes + std::min(expected_tokens, kMaxShardTokens) * token_bytes(format_));
  bytes_.resize(kShardHeaderBytes);
}

void ShardWriter::add(std::span<const std::int32_t> added) {
  check(added.size() <= kMaxShardTokens - tokens(), "a shard can contain at most {} tokens", kMaxShardTokens);
  const std::size_t width = token_bytes(format_);
  std::size_t at = bytes_.size();
  bytes_.resize(at + added.size() * width);
  for (const std::int32_t token : added) {
    check(token >= 0 && token < vocab_size_, "token {} is outside the vocabulary of {}", token, vocab_size_);
    std::memcpy(bytes_.data() + at, &token, width);  // little-endian: copies the low bytes
    at += width;
  }
}

Digest ShardWriter::write(FileOps& ops, const std::filesystem::path& path, Existing existing) {
  Header header{};
  header[0] = magic_of(format_).number;
  header[1] = magic_of(format_).version;
  header[2] = static_cast<std::int32_t>(tokens());
  std::memcpy(bytes_.data(), header.data(), sizeof(header));
  write_file(ops, path, std::span<const std::byte>(bytes_), existing);
  const Digest digest = digest_of(std::span<const std::byte>(bytes_));
  bytes_.resize(kShardHeaderBytes);
  return digest;
}

MappedShard::MappedShard(std::filesystem::path path) : path_(std::move(path)) {
  const std::span<const std::byte> file = map_file(path_);
  check(!file.empty(), Hint{"check that the file is a shard and was copied completely"},
        "Unexpected shard header for {}: the file is shorter than its header of {} bytes", path_.string(),
        kShardHeaderBytes);
  bytes_ = file.data();
  size_ = file.size();
  try {
    Header header;
    std::memcpy(header.data(), bytes_, sizeof(header));
    format_ = format_in(header, path_);
    check(header[2] >= 0, "Unexpected shard header for {}: its token count is {}", path_.string(), header[2]);
    tokens_ = static_cast<std::uint64_t>(header[2]);
    const std::uint64_t expected = kShardHeaderBytes + tokens_ * token_bytes(format_);
    check(size_ == expected, Hint{"build, copy or download the file again"},
          "Shard size mismatch for {}: expected {} bytes, found {}", path_.string(), expected, size_);
  } catch (...) {
    ::munmap(const_cast<std::byte*>(bytes_), size_);
    throw;
  }
}

MappedShard::~MappedShard() {
  if (bytes_) ::munmap(const_cast<std::byte*>(bytes_), size_);
}

MappedShard::MappedShard(MappedShard&& other) noexcept
    : path_(std::move(other.path_)),
      bytes_(std::exchange(other.bytes_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      format_(other.format_),
      tokens_(std::exchange(other.tokens_, 0)) {}

MappedShard& MappedShard::operator=(MappedShard&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(bytes_, other.bytes_);
  std::swap(size_, other.size_);
  std::swap(format_, other.format_);
  std::swap(tokens_, other.tokens_);
  return *this;
}

std::int32_t MappedShard::at(std::uint64_t i) const {
  std::int32_t token = 0;
  copy(i, {&token, 1});
  return token;
}

void MappedShard::copy(std::uint64_t begin, std::span<std::int32_t> out) const {
  check(begin <= tokens_ && out.size() <= tokens_ - begin, "cannot read tokens {} to {} of a shard with {}",
        begin, begin + out.size(), tokens_);
  const std::byte* from = bytes_ + kShardHeaderBytes + begin * token_bytes(format_);
  if (format_ == ShardFormat::u16)
    widen<std::uint16_t>(from, out);
  else
    widen<std::uint32_t>(from, out);
}

Digest MappedShard::digest() const {
  return digest_of(std::span(bytes_, size_));
}

}  // namespace thimble
