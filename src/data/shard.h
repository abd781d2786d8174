// Shards: token files in the format of the published golf data and of llm.c.
//
//   header of 256 int32                           tokens
//   20240520, 1, number of tokens, zeros          uint16, for vocabularies up to 65,536
//   20240801, 7, number of tokens, zeros          uint32, for larger vocabularies
//   20261120, 1, number of tokens, zeros          uint32 with two marks: thimble's own, for chats
//                                                 in the template of another program
//
// All values are little-endian. The file size must match the header exactly.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/digest.h"
#include "base/files.h"

namespace thimble {

enum class ShardFormat { u16, u32, marked };

ShardFormat shard_format_for(std::int64_t vocab_size);

// The marks of the format `marked`, added to a token. Of a chat in thimble's own layout, role
// tokens tell what is learned; a template may write roles as ordinary text.
inline constexpr std::int32_t kLearnedMark = 1 << 30;   // the token is learned
inline constexpr std::int32_t kDocumentMark = 1 << 29;  // the token begins a document
constexpr std::int32_t without_marks(std::int32_t token) {
  return token & (kDocumentMark - 1);
}

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
  explicit ShardWriter(std::int64_t vocab_size, std::uint64_t expected_tokens = 0)
      : ShardWriter(vocab_size, shard_format_for(vocab_size), expected_tokens) {}
  ShardWriter(std::int64_t vocab_size, ShardFormat format, std::uint64_t expected_tokens = 0);

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

// A shard was modified or truncated, or contains a token that the model does not have. A run saves
// its state before it ends with this error.
class ShardError : public Error {
 public:
  using Error::Error;
};

// An open shard. The constructor checks its header and size. Cheap to move. The file is read and
// not mapped: reading a mapped file that has been truncated would kill the process.
class ShardReader {
 public:
  explicit ShardReader(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return file_.path(); }
  ShardFormat format() const { return format_; }
  std::uint64_t tokens() const { return tokens_; }
  std::uint64_t bytes() const { return file_.size(); }  // of the file

  std::int32_t at(std::uint64_t i) const;
  // Copies tokens [begin, begin + out.size()), which must be inside the shard, with their marks.
  // Throws ShardError if the file has become shorter.
  void copy(std::uint64_t begin, std::span<std::int32_t> out) const;

  // Of the complete file. Calls on_bytes(count) after each block; it may throw to stop.
  Digest digest(const std::function<void(std::size_t)>& on_bytes = {}) const;
  // Throws ShardError unless the digest is this one, in hexadecimal digits.
  void verify(std::string_view digest, const std::function<void(std::size_t)>& on_bytes = {}) const;

 private:
  InputFile file_;
  ShardFormat format_ = ShardFormat::u16;
  std::uint64_t tokens_ = 0;
};

// Verifies the digests of shards in a thread of its own, so that training on a large data set
// starts at once.
class ShardVerification {
 public:
  struct Listed {
    std::filesystem::path path;
    std::string digest;
  };
  explicit ShardVerification(std::vector<Listed> shards);
  ~ShardVerification();  // does not wait for the remaining shards
  ShardVerification(const ShardVerification&) = delete;
  ShardVerification& operator=(const ShardVerification&) = delete;

  bool finished() const { return finished_; }
  void throw_if_failed() const;  // throws the error of the first modified shard found so far

 private:
  void run();

  std::vector<Listed> shards_;
  std::atomic<bool> stopping_ = false, finished_ = false;
  std::exception_ptr error_;  // set before finished_
  std::thread thread_;
};

}  // namespace thimble
