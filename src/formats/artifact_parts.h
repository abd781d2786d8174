// The frame of an artifact (artifact.h): magic, version, digest and parts, whatever is in them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pack/codec.h"

namespace thimble {

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
