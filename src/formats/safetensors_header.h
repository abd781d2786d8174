// What the reader and the writer of safetensors share: the dtypes, sizes that cannot overflow, the header.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/safetensors.h"

namespace thimble {

inline constexpr std::uint64_t kSafetensorsLengthBytes = 8;
inline constexpr std::string_view kMetadataKey = "__metadata__";

struct SafetensorsDType {
  std::string_view name;
  int bits;
  std::optional<DType> ours;
};

// Every dtype of the format; nullptr for a name that is none.
const SafetensorsDType* find_safetensors_dtype(std::string_view name);
// The format's name for one of ours; nullptr for f64 and c128, which stay inside.
const SafetensorsDType* find_safetensors_dtype(DType dtype);

// nullopt: the size has no place in 63 bits, or is no whole number of bytes.
std::optional<std::uint64_t> safetensors_bytes(const SafetensorsDType& dtype,
                                               std::span<const std::int64_t> dims);

// For messages: quoted, clipped, on one line.
std::string quoted_name(std::string_view name);
std::string dims_text(std::span<const std::int64_t> dims);

struct SafetensorsHeader {
  SafetensorsFile::Metadata metadata;
  std::vector<SafetensorsEntry> entries;
};

// Throws unless the header is well formed and its tensors cover the data exactly. `file` names it in errors.
SafetensorsHeader parse_safetensors_header(std::string_view text, std::string_view file,
                                           std::uint64_t data_bytes);

}  // namespace thimble
