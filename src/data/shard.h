// Shards: files of tokens, in the format of the published golf data and of llm.c.
//
//   256 int32 of header: 20240520, 1, number of tokens, zeros; then as many uint16 (vocabulary up to 65,536)
//                        20240801, 7, number of tokens, zeros; then as many uint32 (larger ones)
//
// All little-endian; the file's size must match exactly.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/digest.h"
#include "base/files.h"

namespace thimble {

enum class ShardFormat { u16, u32 };

ShardFormat shard_format_for(std::int64_t vocab_size);
constexpr std::size_t token_bytes(ShardFormat format) {
  return format == ShardFormat::u16 ? 2 : 4;
}

inline constexpr std::size_t kShardHeaderBytes = 256 * 4;
inline constexpr std::uint64_t kMaxShardTokens = 0x7FFFFFFF;  // the header's count is an int32
inline constexpr std::uint64_t kDefaultShardTokens = 10'000'000;

// "fineweb", "train", 3 -> "fineweb_train_000003.bin"
std::string shard_name(std::string_view dataset, std::string_view split, std::uint64_t index);

// Collects tokens in memory, because the header must count them, and writes the file as a whole.
//
//   ShardWriter writer(vocab_size, kDefaultShardTokens);
//   writer.add(ids);
//   Digest digest = writer.write(ops, "data/fineweb_train_000000.bin", Existing::refuse);
class ShardWriter {
 public:
  // Room for `expected_tokens` is reserved; more is fine.
  explicit ShardWriter(std::int64_t vocab_size, std::uint64_t expected_tokens = 0);

  // A token outside of the vocabulary is an error.
  void add(std::span<const std::int32_t> tokens);
  std::uint64_t tokens() const { return (bytes_.size() - kShardHeaderBytes) / token_bytes(format_); }

  // The digest is that of the whole file. The writer is empty again, ready for the next shard.
  Digest write(FileOps& ops, const std::filesystem::path& path, Existing existing);

 private:
  std::int64_t vocab_size_;
  ShardFormat format_;
  std::vector<std::byte> bytes_;  // the file, its header still to be filled in
};

// A shard mapped into memory, after its header and its size were found right. Cheap to move. The file must
// not be cut while it is open.
class MappedShard {
 public:
  explicit MappedShard(std::filesystem::path path);
  ~MappedShard();
  MappedShard(MappedShard&& other) noexcept;
  MappedShard& operator=(MappedShard&& other) noexcept;

  const std::filesystem::path& path() const { return path_; }
  ShardFormat format() const { return format_; }
  std::uint64_t tokens() const { return tokens_; }

  std::int32_t at(std::uint64_t i) const;
  // Tokens [begin, begin + out.size()), which must be inside.
  void copy(std::uint64_t begin, std::span<std::int32_t> out) const;

  Digest digest() const;  // of the whole file: reads all of it

 private:
  std::filesystem::path path_;
  const std::byte* bytes_ = nullptr;  // of the whole file
  std::size_t size_ = 0;
  ShardFormat format_ = ShardFormat::u16;
  std::uint64_t tokens_ = 0;
};

}  // namespace thimble
