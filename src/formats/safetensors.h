// Reads and writes safetensors, a common file format of named tensors.
//
// Complete layout; numbers are little-endian, elements are row-major:
//
//   1. 8 bytes   N, unsigned: the size of the header. At most 100,000,000, as in the reference
//                implementation.
//   2. N bytes   the header: one JSON object in UTF-8. It begins with '{' and may end in spaces.
//        "__metadata__"   optional: an object of strings
//        every other key  a tensor: {"dtype":"F32","shape":[2,3],"data_offsets":[BEGIN,END]}
//                         Offsets count from the end of the header. Shape [] is a scalar; a 0 in
//                         a shape makes an empty tensor.
//   3. the data  to the end of the file. Each byte belongs to exactly one tensor: no overlaps, no
//                holes.
//
// Files written by thimble have three more properties:
//
//   4. The header contains "__metadata__" first, then the tensors in the order in which they were
//      added, then spaces, so that the data begins at a multiple of 64 bytes.
//   5. The data is ordered by alignment: first the tensors whose size is a multiple of 64 bytes,
//      then of 32, 16, 8, 4, 2, 1; within a class, in the order in which they were added. Without
//      padding, each tensor of the first class (nearly every matrix) thus begins at a multiple of
//      64, and any other at a multiple of its element size.
//   6. "thimble.digest", optional, is the last tensor of the header and of the data: U8 [16 * n],
//      where n is the number of tensors in the header, including this one. Digests are XXH3-128,
//      high half first, as printed by `xxhsum -H2`:
//        bytes  0 to 15   of everything before the data: 1. and 2.
//        bytes 16 to 31   of the bytes of the header's first tensor
//        ...              and so on in the header's order, except for "thimble.digest" itself
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/digest.h"
#include "base/files.h"
#include "base/progress.h"
#include "tensor/arena.h"
#include "tensor/tensor.h"

namespace thimble {

inline constexpr std::uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;
inline constexpr std::string_view kDigestTensor = "thimble.digest";

struct SafetensorsEntry {
  std::string name;
  std::string_view dtype;  // as in the file: "F32", "BF16", "BOOL", ...
  std::vector<std::int64_t> dims;
  std::uint64_t begin = 0, end = 0;  // within the data

  std::uint64_t bytes() const { return end - begin; }
  std::int64_t count() const;  // elements
};

// A parsed file. Parsing checks all sizes and offsets, so every accessor stays in bounds.
//
//   const auto file = SafetensorsFile::open("model.safetensors");
//   std::vector<float> weight(file.at("tok_emb.weight").count());
//   file.read_f32("tok_emb.weight", weight);
//
// Allocations do not depend on unchecked sizes in the file: memory use is at most a few times the
// header's size plus one copy of the data.
class SafetensorsFile {
 public:
  using Metadata = std::vector<std::pair<std::string, std::string>>;  // in the file's order

  // With `wanted`, only the tensors for which it returns true are read; the others must not be
  // used.
  using TensorFilter = bool (*)(std::string_view tensor);
  static SafetensorsFile open(const std::filesystem::path& path, TensorFilter wanted = nullptr,
                              const ProgressOutput& progress = {});
  // Parses a file in memory. The bytes are not copied: they must outlive the SafetensorsFile.
  static SafetensorsFile view(std::span<const std::byte> bytes, std::string name);

  const std::string& name() const { return name_; }  // for error messages
  const Metadata& metadata() const { return metadata_; }
  const std::string* find_metadata(std::string_view key) const;  // nullptr when absent

  const std::vector<SafetensorsEntry>& entries() const { return entries_; }  // in the header's order
  const SafetensorsEntry* find(std::string_view tensor) const;               // nullptr when absent
  const SafetensorsEntry& at(std::string_view tensor) const;                 // throws an Error when absent

  // Throws an Error for dtypes that thimble does not support: F64, BOOL, I16, ...
  DType dtype(std::string_view tensor) const;
  // May be unaligned: copy the bytes, or use the readers below.
  std::span<const std::byte> bytes(std::string_view tensor) const;
  void read_f32(std::string_view tensor, std::span<float> values) const;         // from F32, F16 or BF16
  void read_i64(std::string_view tensor, std::span<std::int64_t> values) const;  // from I64, I32, I8 or U8

  // Frees the memory of a tensor of an opened file. It must not be used any more.
  void release(std::string_view tensor);
  bool is_read(std::string_view tensor) const { return !wanted_ || wanted_(tensor); }

  Digest header_digest() const { return header_digest_; }  // of everything before the data

 private:
  SafetensorsFile() = default;
  void take_header(std::span<const std::byte> length, std::string_view header, std::uint64_t data_bytes);
  const SafetensorsEntry& check_count(std::string_view tensor, std::size_t values) const;

  std::string name_;
  Metadata metadata_;
  std::vector<SafetensorsEntry> entries_;
  std::vector<std::uint32_t> by_name_;  // indices into entries_, sorted by name
  Digest header_digest_;
  TensorFilter wanted_ = nullptr;
  Arena memory_;
  std::span<const std::byte> data_;  // points into memory_, or into the bytes passed to view()
};

// Throws an Error that names the first tensor (or the header) whose digest does not match. Tensors
// that were not read are not checked. A file without digests is an Error, too.
void verify_digest(const SafetensorsFile& file, const ProgressOutput& progress = {});

enum class WithDigest { no, yes };

// Collects tensors, then writes the file. The writer decides the order of the data.
//
//   SafetensorsWriter writer;
//   writer.set_metadata("format", "pt");
//   writer.add("tok_emb.weight", DType::f32, {vocab_size, dim}, std::as_bytes(weights));
//   writer.add("head.weight", DType::bf16, {vocab_size, dim},
//              [&](const auto& sink) { ... sink(piece) ... });
//   writer.write(ops, path, Existing::refuse, WithDigest::yes);
//
// The same calls give the same bytes. Tensors are not copied: views must stay valid until write(),
// and sources produce their bytes piece by piece.
class SafetensorsWriter {
 public:
  using Sink = std::function<void(std::span<const std::byte>)>;
  // Called once per write(). Passes the tensor's bytes to the sink, front to back, in pieces of any
  // size. Each piece is one write to the file, so about 1 MiB is a good size.
  using Source = std::function<void(const Sink&)>;
  using Dims = std::vector<std::int64_t>;

  void set_metadata(std::string key, std::string value);
  void add(std::string name, DType dtype, Dims dims, std::span<const std::byte> bytes);
  void add(std::string name, DType dtype, Dims dims, Source source);

  // Atomic: `path` becomes the complete file or is left unchanged.
  void write(FileOps& ops, const std::filesystem::path& path, Existing existing, WithDigest digest,
             const Inspector& inspect = {}, const ProgressOutput& progress = {}) const;

 private:
  struct Item {
    SafetensorsEntry entry;
    Source source;
  };
  struct Plan;

  void add(SafetensorsEntry entry, Source source);
  Plan plan(WithDigest digest) const;
  std::string header(const Plan& plan) const;

  std::vector<std::pair<std::string, std::string>> metadata_;
  std::vector<Item> items_;
  std::set<std::string, std::less<>> names_, keys_;
};

// Shared by the reader and the writer: dtypes, sizes with overflow checks, the header.
inline constexpr std::uint64_t kSafetensorsLengthBytes = 8;
inline constexpr std::string_view kMetadataKey = "__metadata__";

struct SafetensorsDType {
  std::string_view name;
  int bits;
  std::optional<DType> ours;
};

// All dtypes of the format; nullptr for an unknown name.
const SafetensorsDType* find_safetensors_dtype(std::string_view name);
// The format's name of a DType; nullptr for f64 and c128, which are never written.
const SafetensorsDType* find_safetensors_dtype(DType dtype);

// Returns nullopt if the size does not fit 63 bits or is not an integral number of bytes.
std::optional<std::uint64_t> safetensors_bytes(const SafetensorsDType& dtype,
                                               std::span<const std::int64_t> dims);

// For error messages: quoted, truncated, on one line.
std::string quoted_name(std::string_view name);
std::string dims_text(std::span<const std::int64_t> dims);

struct SafetensorsHeader {
  SafetensorsFile::Metadata metadata;
  std::vector<SafetensorsEntry> entries;
};

// Throws unless the header is well formed and its tensors cover the data exactly. `file` is the
// name used in errors.
SafetensorsHeader parse_safetensors_header(std::string_view text, std::string_view file,
                                           std::uint64_t data_bytes);

// One 16-byte digest of "thimble.digest".
using DigestBytes = std::array<std::byte, 16>;

// High half first, most significant byte first: the order printed by `xxhsum -H2`.
DigestBytes digest_bytes(const Digest& digest);

}  // namespace thimble
