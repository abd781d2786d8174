// One digest as 16 bytes of "thimble.digest".
#pragma once

#include <array>
#include <cstddef>

#include "base/digest.h"

namespace thimble {

using DigestBytes = std::array<std::byte, 16>;

// High half first, most significant byte first: the order in which `xxhsum -H2` prints it.
DigestBytes digest_bytes(const Digest& digest);

}  // namespace thimble
