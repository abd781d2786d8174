// The artifact, `.thimble`: a packed model with all that it needs, in as few bytes as possible.
//
// The complete layout; every number is little-endian:
//
//   bytes 0 to 6    "thimble"
//   byte  7         the version of the format: 1
//   bytes 8 to 23   XXH3-128 of everything behind them, high half first, as `xxhsum -H2` prints it
//   then parts, to the end of the file, each of them:
//     byte  0         codec: 1 zstd, 2 zlib, 3 range (pack/range_codec.h)
//     bytes 1 to 8    R: the size of the content
//     bytes 9 to 16   S: its size in the file
//     S bytes         the content, compressed; S = 0 if R = 0
//
//   part 0      metadata: a JSON object of strings, with the keys of model_file.h and these:
//                 thimble.rule        the quantiser: "int8_clean_per_row_v1"
//                 thimble.storage     a letter a tensor: 4 F32, 2 F16, 8 I8, 6 I6, 5 I5, 1 I8 of one scale
//                 thimble.restored    a letter a tensor: f f32, b bf16, h f16
//                 thimble.normalizer  "nmt_nfkc": part 1 refers to libsentencepiece's own table of that name
//                 thimble.normalizer_digest   of that table
//   part 1      the tokenizer's file, always zstd; empty: none. Of a SentencePiece model with a standard
//               normaliser compressed with the library's table as prefix (tokenizer/sentencepiece.h):
//               next to nothing of it remains
//   part 2 ...  the weights, a part for each group of tensors (pack/packed_tensor.h), in the order of the
//               groups' names; so is the order of letters above, by layer within a group
//
// Names and shapes of tensors follow from the config. Nothing is allocated on the word of a file: what all
// parts hold is at most 64 MiB and 256 times the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
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
  std::vector<PackedTensor> tensors;  // in the table's order; WeightsAs::stored: none
};

bool is_artifact(std::string_view first_bytes);  // the first 8 are enough

Artifact read_artifact(std::span<const std::byte> bytes, const std::string& name,
                       WeightsAs as = WeightsAs::floats);
Artifact open_artifact(const std::filesystem::path& path, WeightsAs as = WeightsAs::floats);

// What codes its weights; range where it codes any of them.
Codec artifact_codec(const std::filesystem::path& path);

// Everything but the weights: written first, so that its size is known while the weights are made to fit.
struct ArtifactHead {
  std::string bytes;                  // parts 0 and 1
  std::uint64_t tokenizer_bytes = 0;  // part 1
};
ArtifactHead artifact_head(const ModelFile& model, std::span<const PackedTensor> tensors,
                           std::string_view rule, Codec codec);

std::uint64_t artifact_bytes(const ArtifactHead& head, std::span<const CodedGroup> groups);

// The whole file. The same arguments give the same bytes.
std::string write_artifact(const ArtifactHead& head, std::span<const CodedGroup> groups);

// Metadata of an artifact, beside the keys of model_file.h, and its letters (artifact.h).
inline constexpr std::string_view kRuleKey = "thimble.rule";
inline constexpr std::string_view kStorageKey = "thimble.storage";
inline constexpr std::string_view kRestoredKey = "thimble.restored";
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

// The frame of an artifact (artifact.h): magic, version, digest and parts, whatever is in them.
struct ArtifactPart {
  Codec codec = Codec::zstd;
  std::uint64_t raw_bytes = 0;
  std::span<const std::byte> stored;

  std::vector<std::byte> content(Prefix prefix = {}) const;
};

inline constexpr std::uint64_t kPartHeaderBytes = 17, kArtifactHeaderBytes = 24;

// Checks magic, version, digest and every size; what the parts hold together is bounded as artifact.h says.
// Messages begin with `name`.
std::vector<ArtifactPart> read_parts(std::span<const std::byte> bytes, std::string_view name);

void append_part(const ArtifactPart& part, std::string& bytes);

// Puts the header before the parts.
std::string with_artifact_header(std::string_view parts);

}  // namespace thimble
