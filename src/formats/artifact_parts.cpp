#include "formats/artifact_parts.h"

#include <algorithm>

#include "base/digest.h"
#include "base/error.h"
#include "formats/artifact.h"
#include "formats/safetensors_digest.h"

namespace thimble {

namespace {

constexpr std::string_view kMagic = "thimble";
constexpr std::uint8_t kVersion = 1;
constexpr std::uint64_t kMostContent = 64 << 20, kMostExpansion = 256;

std::uint64_t read_u64(std::span<const std::byte> bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < 8; ++i) value |= std::to_integer<std::uint64_t>(bytes[i]) << (8 * i);
  return value;
}

void append_u64(std::uint64_t value, std::string& bytes) {
  for (std::size_t i = 0; i < 8; ++i) bytes += static_cast<char>(value >> (8 * i));
}

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void check_header(std::span<const std::byte> bytes, std::string_view name) {
  check(is_artifact(text_of(bytes.first(std::min<std::size_t>(bytes.size(), 8)))), "{} is no artifact", name);
  const auto version = std::to_integer<std::uint8_t>(bytes[kMagic.size()]);
  check(version == kVersion, Hint{"a newer thimble may have written it"},
        "{}: the artifact has format version {}, this build reads version {}", name, version, kVersion);
  check(bytes.size() >= kArtifactHeaderBytes, "{} is cut short: it has {} bytes", name, bytes.size());
  const auto expected = bytes.subspan(8, sizeof(DigestBytes));
  const DigestBytes found = digest_bytes(digest_of(bytes.subspan(kArtifactHeaderBytes)));
  check(std::ranges::equal(found, expected), Hint{"copy it again, or pack the model again"},
        "{}: its bytes are not those that were written", name);
}

ArtifactPart read_part(std::span<const std::byte>& bytes, std::string_view name) {
  check(bytes.size() >= kPartHeaderBytes, "{} ends inside a part's header", name);
  const auto codec = std::to_integer<std::uint8_t>(bytes[0]);
  check(codec >= 1 && codec <= 3, "{}: expected codec 1, 2 or 3, found {}", name, codec);
  const std::uint64_t raw = read_u64(bytes.subspan(1)), stored = read_u64(bytes.subspan(9));
  bytes = bytes.subspan(kPartHeaderBytes);
  check(stored <= bytes.size(), "{}: a part claims {} bytes, {} are left", name, stored, bytes.size());
  check((raw == 0) == (stored == 0), "{}: a part claims {} bytes of content in {} bytes", name, raw, stored);
  const ArtifactPart part{static_cast<Codec>(codec), raw, bytes.first(stored)};
  bytes = bytes.subspan(stored);
  return part;
}

}  // namespace

bool is_artifact(std::string_view first_bytes) {
  // No printable character: a text that begins with the word is none.
  return first_bytes.size() > kMagic.size() && first_bytes.starts_with(kMagic) &&
         static_cast<unsigned char>(first_bytes[kMagic.size()]) < ' ';
}

std::vector<std::byte> ArtifactPart::content(Prefix prefix) const {
  std::vector<std::byte> bytes(raw_bytes);
  if (!bytes.empty()) decompress(stored, codec, bytes, prefix);
  return bytes;
}

std::vector<ArtifactPart> read_parts(std::span<const std::byte> bytes, std::string_view name) {
  check_header(bytes, name);
  std::uint64_t room = kMostContent + kMostExpansion * bytes.size();
  std::vector<ArtifactPart> parts;
  for (auto rest = bytes.subspan(kArtifactHeaderBytes); !rest.empty();) {
    parts.push_back(read_part(rest, name));
    check(parts.back().raw_bytes <= room,
          "{}: its parts claim to hold more than {} bytes and {} times the file", name, kMostContent,
          kMostExpansion);
    room -= parts.back().raw_bytes;
  }
  return parts;
}

void append_part(const ArtifactPart& part, std::string& bytes) {
  bytes += static_cast<char>(part.codec);
  append_u64(part.raw_bytes, bytes);
  append_u64(part.stored.size(), bytes);
  bytes += text_of(part.stored);
}

std::string with_artifact_header(std::string_view parts) {
  std::string bytes(kMagic);
  bytes += static_cast<char>(kVersion);
  bytes += text_of(digest_bytes(digest_of(parts)));
  return bytes.append(parts);
}

}  // namespace thimble
