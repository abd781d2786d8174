#include "data/shard.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/signals.h"

namespace thimble {

namespace {

static_assert(std::endian::native == std::endian::little,
              "shards are little-endian and are not byte-swapped");

constexpr std::int64_t kMaxU16Vocabulary = 65536;
constexpr std::size_t kDigestBlockBytes = 1 << 20;

using Header = std::array<std::int32_t, 256>;
static_assert(sizeof(Header) == kShardHeaderBytes);

struct Magic {
  std::int32_t number, version;
};
constexpr Magic magic_of(ShardFormat format) {
  if (format == ShardFormat::marked) return {20261120, 1};
  return format == ShardFormat::u16 ? Magic{20240520, 1} : Magic{20240801, 7};
}

ShardFormat format_in(const Header& header, const std::filesystem::path& path) {
  for (const ShardFormat format : {ShardFormat::u16, ShardFormat::u32, ShardFormat::marked}) {
    const Magic magic = magic_of(format);
    if (header[0] == magic.number && header[1] == magic.version) return format;
  }
  fail(Hint{"expected a header that begins with 20240520, 1 (uint16) or 20240801, 7 (uint32)"},
       "Unexpected shard header for {}: it begins with {}, {}", path.string(), header[0], header[1]);
}

// A large data set can have more shards than a process may open by default, so the limit is raised
// to the most that the system allows.
InputFile open_shard(const std::filesystem::path& path) {
  try {
    return InputFile(path);
  } catch (const FileError& error) {
    rlimit files{};
    if (error.code() != EMFILE || ::getrlimit(RLIMIT_NOFILE, &files) != 0) throw;
    files.rlim_cur = files.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &files);
  }
  return InputFile(path);
}

}  // namespace

ShardFormat shard_format_for(std::int64_t vocab_size) {
  return vocab_size <= kMaxU16Vocabulary ? ShardFormat::u16 : ShardFormat::u32;
}

std::string shard_name(std::string_view dataset, std::string_view split, std::uint64_t index) {
  return fmt::format("{}_{}_{:06}.bin", dataset, split, index);
}

ShardWriter::ShardWriter(std::int64_t vocab_size, ShardFormat format, std::uint64_t expected_tokens)
    : vocab_size_(vocab_size), format_(format) {
  bytes_.reserve(kShardHeaderBytes + std::min(expected_tokens, kMaxShardTokens) * token_bytes(format_));
  bytes_.resize(kShardHeaderBytes);
}

void ShardWriter::add(std::span<const std::int32_t> added) {
  check(added.size() <= kMaxShardTokens - tokens(), "a shard can contain at most {} tokens", kMaxShardTokens);
  const std::size_t width = token_bytes(format_);
  std::size_t at = bytes_.size();
  bytes_.resize(at + added.size() * width);
  for (const std::int32_t token : added) {
    const std::int32_t id = format_ == ShardFormat::marked ? without_marks(token) : token;
    check(token >= 0 && id < vocab_size_, "token {} is outside the vocabulary of {}", id, vocab_size_);
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

ShardReader::ShardReader(const std::filesystem::path& path) : file_(open_shard(path)) {
  Header header;
  const std::size_t found = file_.read_some_at(0, std::as_writable_bytes(std::span(header)));
  check(found == sizeof(header), Hint{"check that the file is a shard and was copied completely"},
        "Unexpected shard header for {}: the file is shorter than its header of {} bytes", path.string(),
        kShardHeaderBytes);
  format_ = format_in(header, path);
  check(header[2] >= 0, "Unexpected shard header for {}: its token count is {}", path.string(), header[2]);
  tokens_ = static_cast<std::uint64_t>(header[2]);
  const std::uint64_t expected = kShardHeaderBytes + tokens_ * token_bytes(format_);
  check(bytes() == expected, Hint{"build, copy or download the file again"},
        "Shard size mismatch for {}: expected {} bytes, found {}", path.string(), expected, bytes());
}

std::int32_t ShardReader::at(std::uint64_t i) const {
  std::int32_t token = 0;
  copy(i, {&token, 1});
  return token;
}

void ShardReader::copy(std::uint64_t begin, std::span<std::int32_t> out) const {
  check(begin <= tokens_ && out.size() <= tokens_ - begin, "cannot read tokens {} to {} of a shard with {}",
        begin, begin + out.size(), tokens_);
  const std::size_t width = token_bytes(format_);
  // 16-bit tokens are read into the second half of the output and widened from there in place.
  const std::span<std::byte> stored = std::as_writable_bytes(out).last(out.size() * width);
  if (file_.read_some_at(kShardHeaderBytes + begin * width, stored) < stored.size())
    throw ShardError(fmt::format("{} has become shorter than its {} tokens", path().string(), tokens_),
                     Hint{"build or copy the data again"});
  if (width == sizeof(std::int32_t)) return;
  for (std::size_t i = 0; i < out.size(); ++i) {
    std::uint16_t token = 0;
    std::memcpy(&token, stored.data() + i * width, width);
    out[i] = token;
  }
}

Digest ShardReader::digest(const std::function<void(std::size_t)>& on_bytes) const {
  std::vector<std::byte> buffer(kDigestBlockBytes);
  Digester digester;
  for (std::uint64_t at = 0;;) {
    const std::size_t count = file_.read_some_at(at, buffer);
    if (count == 0) return digester.result();
    digester.add(std::span(buffer).first(count));
    at += count;
    if (on_bytes) on_bytes(count);
  }
}

void ShardReader::verify(std::string_view digest_hex,
                         const std::function<void(std::size_t)>& on_bytes) const {
  const std::string found = digest(on_bytes).hex();
  if (found != digest_hex)
    throw ShardError(fmt::format("{} was modified: its digest is {}, but the manifest lists {}",
                                 path().string(), found, digest_hex),
                     Hint{"build or copy the data again"});
}

ShardVerification::ShardVerification(std::vector<Listed> shards) : shards_(std::move(shards)) {
  const SignalMaskScope held;
  thread_ = std::thread([this] { run(); });
}

ShardVerification::~ShardVerification() {
  stopping_ = true;
  thread_.join();
}

void ShardVerification::run() {
  try {
    for (const Listed& shard : shards_)
      ShardReader(shard.path).verify(shard.digest, [&](std::size_t) {
        if (stopping_) throw Interrupted();
      });
  } catch (const Interrupted&) {
    return;
  } catch (...) {
    error_ = std::current_exception();
  }
  finished_ = true;
}

void ShardVerification::throw_if_failed() const {
  if (finished_ && error_) std::rethrow_exception(error_);
}

}  // namespace thimble
