// Metadata of an artifact, beside the keys of model_file.h, and its letters (artifact.h).
#pragma once

#include <optional>
#include <string_view>

#include "pack/packed_tensor.h"

namespace thimble {

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

}  // namespace thimble
