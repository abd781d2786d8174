// The compressors of artifacts: zstd at level 22, zlib at level 9, and thimble's range coder. Here
// the range coder treats its input as plain bytes; for rows of integers call range_codec.h
// directly.
//
// Output is deterministic for a given version of the library. Decompression is bounded: the caller
// passes the exact size of the result, and anything else is an Error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

namespace thimble {

enum class Codec : std::uint8_t { zstd = 1, zlib = 2, range = 3 };

std::string_view name_of(Codec codec);  // "zstd", "zlib", "range"

// zstd only: bytes known to both writer and reader, which the compressed data may refer to.
using Prefix = std::span<const std::byte>;

// Calls `on_progress` with the size of every piece of input consumed; it may throw to stop.
std::vector<std::byte> compress(std::span<const std::byte> bytes, Codec codec,
                                const std::function<void(std::size_t)>& on_progress = {}, Prefix prefix = {});

// Decompresses all of `stored`; the result must fill `bytes` exactly.
void decompress(std::span<const std::byte> stored, Codec codec, std::span<std::byte> bytes,
                Prefix prefix = {});

}  // namespace thimble
