// CRC-32C (Castagnoli; RFC 3720, appendix B.4): the checksum of TensorFlow's record files.
#pragma once

#include <cstdint>
#include <string_view>

namespace thimble {

std::uint32_t crc32c(std::string_view bytes);

// As record files store it: rotated and shifted, so that a checksum of data that holds checksums stays a good one.
std::uint32_t masked_crc32c(std::string_view bytes);

}  // namespace thimble
