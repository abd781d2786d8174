// Our own entropy coder: an adaptive binary range coder for rows of quantised weights.
//
// zstd comes down to how often each integer occurs. More is known of a weight: its column and its row have magnitudes of
// their own, and some columns lean to one sign. Every integer is a few binary decisions (how many bits its magnitude has,
// those bits, its sign). Two contexts have counted what happened before, the column's running mean by itself and together
// with the row's; a mixer, which learns on the way whom to believe, makes one probability of both, and a carry-less range
// coder spends as many bits as it says.
//
// Measured on a trained model (3.0 M weights, Muon), against zstd-22: 6 bits clipped at 12.85 deviations 3.9 % smaller, 5
// bits 5.6 %, 6 bits by the largest of a row 2.3 %, 8 bits 1.5 %. More contexts (neighbours, the row by itself, none at
// all) change less than 0.1 %; signs are worth 0.5 %.
//
// What is coded, all numbers little-endian:
//
//   bytes 0 to 7    R: how many bytes come out
//   bytes 8 to 15   I: so many of them, from the first on, are integers; the rest is coded as plain bytes
//   bytes 16 to 19  W: columns of a row of integers, 1 to 2^24
//   the rest        the coder's bytes
//
// Integers alone: the same bytes on every machine. Reading is bounded by R, which whoever asks knows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace thimble {

struct RangeLayout {
  std::uint64_t integers = 0;
  std::uint32_t width = 1;
};

std::vector<std::byte> range_compress(std::span<const std::byte> bytes, const RangeLayout& layout,
                                      const std::function<void(std::size_t)>& on_progress = {});

// Fills all of `bytes` from all of `stored`; anything that range_compress did not write so is an Error, or other bytes.
void range_decompress(std::span<const std::byte> stored, std::span<std::byte> bytes);

}  // namespace thimble
