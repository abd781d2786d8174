// The block types of GGUF, in ggml's layout. d, m and dmin are f16; q is an unsigned integer of the
// type's bits unless stated otherwise.
//
//   type    numbers  bytes  value
//   Q4_0         32     18  d (q - 8)
//   Q4_1         32     20  d q + m
//   Q5_0         32     22  d (q - 16)
//   Q5_1         32     24  d q + m
//   Q8_0         32     34  d q, q signed
//   Q2_K        256     84  d s q - dmin t    s, t: 4 bits for every 16 numbers
//   Q3_K        256    110  d (s - 32) (q - 4)      6 bits for every 16
//   Q4_K        256    144  d s q - dmin t    s, t: 6 bits for every 32
//   Q5_K        256    176  d s q - dmin t    s, t: 6 bits for every 32
//   Q6_K        256    210  d s (q - 32)      s: i8 for every 16
//   IQ4_NL       32     18  d table[q]
//   IQ4_XS      256    136  d (s - 32) table[q]     6 bits for every 32
//
// Products are f32 and are computed from left to right; d s, d (s - 32) and dmin t come first. This
// is ggml's order, so values are equal bit for bit.
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

inline constexpr std::size_t kGgufBlock = 32;        // numbers that share a scale
inline constexpr std::size_t kGgufSuperBlock = 256;  // numbers in a block of K types

struct GgufBlockFormat {
  GgufTypeInfo info;
  // One block. Exactly one of `decode` and `split` is set.
  void (*decode)(const std::byte* block, float* values);
  // value = integer * scale; one scale for every kGgufBlock numbers.
  void (*split)(const std::byte* block, float* integers, float* scales);
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
