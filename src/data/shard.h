// Shards: token files in the format of the published golf data and of llm.c.
//
//   header of 256 int32                           tokens
//   20240520, 1, number of tokens, zeros          uint16, for vocabularies up to 65,536
//   20240801, 7, number of tokens, zeros          uint32, for larger vocabularies
//
// All values are little-endian. The file size must match the header exactly.
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

// Collects tokens in memory and then writes the complete file, because its header contains their
// number.
//
//   ShardWriter writer(vocab_size, kDefaultShardTokens);
//   writer.add(ids);
//   Digest digest = writer.write(ops, "data/fineweb_train_000000.bin", Existing::refuse);
class ShardWriter {
 public:
  // Reserves memory for `expected_tokens`; adding more is allowed.
  explicit ShardWriter(std::int64_t vocab_size, std::uint64_t expected_tokens = 0);

  // Throws if a token is outside the vocabulary.
  void add(std::span<const std::int32_t> tokens);
  std::uint64_t tokens() const { return (bytes_.size() - kShardHeaderBytes) / token_bytes(format_); }

  // Returns the digest of the file. The writer is empty afterwards and ready for the next shard.
  Digest write(FileOps& ops, const std::filesystem::path& path, Existing existing);

 private:
  std::int64_t vocab_size_;
  ShardFormat format_;
  std::vector<std::byte> bytes_;  // the file; the header is filled in by write()
};

// A shard mapped into memory. The constructor checks its header and size. Cheap to move. The file
// must not be truncated while it is mapped.
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
  // Copies tokens [begin, begin + out.size()), which must be inside the shard.
  void copy(std::uint64_t begin, std::span<std::int32_t> out) const;

  Digest digest() const;  // of the complete file: reads all of it

 private:
  std::filesystem::path path_;
  const std::byte* bytes_ = nullptr;  // of the whole file
  std::size_t size_ = 0;
  ShardFormat format_ = ShardFormat::u16;
  std::uint64_t tokens_ = 0;
};

}  // namespace thimble
