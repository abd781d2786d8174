// The compressors behind the artifact: zstd at level 22, zlib at level 9, and our own range coder (range_codec.h), which
// here takes everything for plain bytes: for rows of integers call it by its own name.
//
// The same bytes give the same result for one version of the library. Reading is bounded: whoever asks knows
// how long the result is, and anything else is an Error.
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

// zstd alone: bytes that writer and reader both have, to which what is compressed may refer.
using Prefix = std::span<const std::byte>;

// `on_progress` hears of every piece that was taken in, by its size; it may throw to stop.
std::vector<std::byte> compress(std::span<const std::byte> bytes, Codec codec,
                                const std::function<void(std::size_t)>& on_progress = {}, Prefix prefix = {});

// Fills all of `bytes` from all of `stored`.
void decompress(std::span<const std::byte> stored, Codec codec, std::span<std::byte> bytes,
                Prefix prefix = {});

}  // namespace thimble
