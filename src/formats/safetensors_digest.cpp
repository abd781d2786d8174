#include "formats/safetensors_digest.h"

#include <algorithm>

#include "base/error.h"
#include "formats/safetensors.h"
#include "formats/safetensors_header.h"

namespace thimble {

DigestBytes digest_bytes(const Digest& digest) {
  DigestBytes bytes;
  for (std::size_t i = 0; i < 8; ++i) {
    bytes[i] = static_cast<std::byte>(digest.high >> (56 - 8 * i));
    bytes[8 + i] = static_cast<std::byte>(digest.low >> (56 - 8 * i));
  }
  return bytes;
}

void verify_digest(const SafetensorsFile& file) {
  const Hint damaged{
      "the file was changed or damaged after it was written: copy it again, or use an older one"};
  const auto& entries = file.entries();
  const SafetensorsEntry* own = file.find(kDigestTensor);
  check(own, "{}: expected digests in a tensor {}, found none", file.name(), kDigestTensor);
  const auto expected_dims = static_cast<std::int64_t>(sizeof(DigestBytes) * entries.size());
  check(own == &entries.back() && own->dtype == "U8" && own->dims == std::vector{expected_dims}, damaged,
        "{}: expected {} to be the last tensor, U8 of shape [{}], found {} of shape {}", file.name(),
        kDigestTensor, expected_dims, own->dtype, dims_text(own->dims));
  const auto written = file.bytes(kDigestTensor);
  auto matches = [&](std::size_t i, const Digest& digest) {
    const DigestBytes bytes = digest_bytes(digest);
    return std::equal(bytes.begin(), bytes.end(),
                      written.begin() + static_cast<std::ptrdiff_t>(i * bytes.size()));
  };
  check(matches(0, file.header_digest()), damaged,
        "{}: the header is not the one that was written (digest {})", file.name(),
        file.header_digest().hex());
  for (std::size_t i = 0; i + 1 < entries.size(); ++i) {
    const Digest digest = digest_of(file.bytes(entries[i].name));
    if (!matches(i + 1, digest))
      fail(damaged, "{}: tensor {}: its bytes are not those that were written (digest {})", file.name(),
           quoted_name(entries[i].name), digest.hex());
  }
}

}  // namespace thimble
