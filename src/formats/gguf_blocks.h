// The block types of GGUF and their quantizers. tensor/block_rows.h describes the layouts.
//
// Q4_0, Q5_0, Q5_1 and Q8_0 are quantized as ggml's reference does it, byte for byte. q is computed
// with d before d is rounded to f16:
//
//   Q8_0  d = max|x| / 127, q = round(x / d), halves away from zero
//   Q4_0  d = e / -8 where e is the x of largest magnitude, with its sign; q = min(15,
//         floor(x / d + 8.5)). Q5_0 has 16 instead of 8
//   Q5_1  m = min x, d = (max x - m) / 31, q = floor((x - m) / d + 0.5)
//
// Q4_K, Q5_K and Q6_K minimize the squared error (gguf_k_quants.cpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "formats/gguf_types.h"

namespace thimble {

struct GgufBlockFormat {
  GgufTypeInfo info;
  void (*encode)(const float* values, std::byte* block);  // nullptr: thimble only reads the type
};

std::span<const GgufBlockFormat> gguf_block_formats();
const GgufBlockFormat* find_block_format(GgufType type);  // nullptr for F32, F16 and BF16

// Quantizers of K types. The values must be finite.
void encode_q4_k(const float* values, std::byte* block);
void encode_q5_k(const float* values, std::byte* block);
void encode_q6_k(const float* values, std::byte* block);

// Bits of `d` as f16. Throws an Error if f16 cannot represent it.
std::uint16_t half_scale(float d);

}  // namespace thimble
