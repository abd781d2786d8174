// The artifact format, `.thimble`: a packed model with its config and tokenizer in one small file.
//
// Complete layout; all numbers are little-endian:
//
//   bytes 0 to 6    "thimble"
//   byte  7         the version of the format: 1
//   bytes 8 to 23   XXH3-128 of all bytes that follow, high half first, as printed by `xxhsum -H2`
//   then parts, to the end of the file, each with this layout:
//     byte  0         codec: 1 zstd, 2 zlib, 3 range (pack/range_codec.h)
//     bytes 1 to 8    R: the uncompressed size
//     bytes 9 to 16   S: the compressed size
//     S bytes         the content, compressed; S = 0 if R = 0
//
//   part 0      metadata: a JSON object of strings, with the keys of model_file.h and these:
//                 thimble.rule        the quantizer: "int8_clean_per_row_v1"
//                 thimble.storage     one letter per tensor: 4 F32, 2 F16, 8 I8, 6 I6, 5 I5,
//                                     1 I8 with a single scale
//                 thimble.restored    one letter per tensor: f f32, b bf16, h f16
//                 thimble.training    how the source was trained, as JSON; absent if unknown
//                 thimble.normalizer  for example "nmt_nfkc": the table of libsentencepiece that
//                                     serves as compression prefix of part 1
//                 thimble.normalizer_digest   XXH3-128 of that table
//   part 1      the tokenizer's file, always zstd; empty if there is none. A SentencePiece model
//               with a standard normalizer is compressed with the library's own table as prefix
//               (tokenizer/sentencepiece.h), which removes nearly all of the table from the file
//   part 2 ...  the weights, one part per group of tensors (pack/packed_tensor.h), sorted by group
//               name. The letters above are in the same order, by layer within a group.
//
// Names and shapes of tensors follow from the config. To bound allocations for untrusted files, the
// uncompressed size of all parts is limited to 64 MiB plus 256 times the file size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/model_file.h"
#include "pack/codec.h"
#include "pack/pack_weights.h"
#include "pack/packed_tensor.h"

namespace thimble {

struct Artifact {
  ModelFile model;
  std::string rule;                   // thimble.rule
  std::vector<PackedTensor> tensors;  // in the order of the ParamTable; empty for WeightsAs::stored
};

bool is_artifact(std::string_view first_bytes);  // needs the first 8 bytes

// Returns the content of part `index` of the weights, for programs that decode parts themselves.
// Absent: ArtifactPart::content.
struct ArtifactPart;
using PartReader = std::function<std::vector<std::byte>(const ArtifactPart& part, std::size_t index)>;

Artifact read_artifact(std::span<const std::byte> bytes, const std::string& name,
                       WeightsAs as = WeightsAs::floats, const ProgressOutput& progress = {},
                       const PartReader& reader = {});
Artifact open_artifact(const std::filesystem::path& path, WeightsAs as = WeightsAs::floats,
                       const ProgressOutput& progress = {});

// The codec of the weights; range if any part uses it.
Codec artifact_codec(const std::filesystem::path& path);

// Everything except the weights. It is written first because fitting the weights to a byte budget
// requires its size. Of the model's metadata, it contains kTrainingKey.
struct ArtifactHead {
  std::string bytes;                  // parts 0 and 1
  std::uint64_t tokenizer_bytes = 0;  // part 1
};
ArtifactHead artifact_head(const ModelFile& model, std::span<const PackedTensor> tensors,
                           std::string_view rule, Codec codec);

std::uint64_t artifact_bytes(const ArtifactHead& head, std::span<const CodedGroup> groups);

// Returns the complete file. Equal arguments give equal bytes.
std::string write_artifact(const ArtifactHead& head, std::span<const CodedGroup> groups);

// The same model in a file that contains its tokenizer completely, for readers without
// libsentencepiece's tables (thimble.normalizer). Returns other files unchanged.
std::string self_contained_artifact(std::string bytes, const std::string& name);

// Metadata keys of an artifact, in addition to those of model_file.h, and its letters (see above).
inline constexpr std::string_view kRuleKey = "thimble.rule";
inline constexpr std::string_view kStorageKey = "thimble.storage";
inline constexpr std::string_view kRestoredKey = "thimble.restored";
inline constexpr std::string_view kTrainingKey = "thimble.training";
inline constexpr std::string_view kNormalizerKey = "thimble.normalizer";
inline constexpr std::string_view kNormalizerDigestKey = "thimble.normalizer_digest";

inline constexpr std::string_view kStorageLetters = "428651";  // in the order of Storage
static_assert(kStorageLetters.size() == kStorages);

constexpr char letter_of(Storage storage) {
  return kStorageLetters[static_cast<std::size_t>(storage)];
}
constexpr std::optional<Storage> storage_of_letter(char letter) {
  const std::size_t at = kStorageLetters.find(letter);
  return at == kStorageLetters.npos ? std::nullopt : std::optional(static_cast<Storage>(at));
}

constexpr char letter_of(DType restored) {
  return restored == DType::bf16 ? 'b' : restored == DType::f16 ? 'h' : 'f';
}
constexpr std::optional<DType> dtype_of_letter(char letter) {
  if (letter == 'f') return DType::f32;
  if (letter == 'b') return DType::bf16;
  if (letter == 'h') return DType::f16;
  return std::nullopt;
}

// The container of an artifact: magic, version, digest and parts, independent of their content.
struct ArtifactPart {
  Codec codec = Codec::zstd;
  std::uint64_t raw_bytes = 0;
  std::span<const std::byte> stored;

  std::vector<std::byte> content(Prefix prefix = {}) const;
};

inline constexpr std::uint64_t kPartHeaderBytes = 17, kArtifactHeaderBytes = 24;

// Checks magic, version, digest and every size, including the bound on the total uncompressed size.
// Error messages begin with `name`.
std::vector<ArtifactPart> read_parts(std::span<const std::byte> bytes, std::string_view name);

void append_part(const ArtifactPart& part, std::string& bytes);

// Prepends the header to the parts.
std::string with_artifact_header(std::string_view parts);

}  // namespace thimble
