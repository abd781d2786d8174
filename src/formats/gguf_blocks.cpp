#include "formats/gguf_blocks.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "tensor/tensor.h"

namespace thimble {

namespace {

static_assert(std::endian::native == std::endian::little,
              "numbers in the file are little-endian and are not converted");

constexpr std::size_t kHalf = kGgufBlock / 2;

unsigned byte_at(const std::byte* from, std::size_t i) {
  return std::to_integer<unsigned>(from[i]);
}

template <class T>
T loaded(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <class T>
void store(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof value);
}

float half_at(const std::byte* from) {
  return to_f32(f16{loaded<std::uint16_t>(from)});
}

// ---- Types of 32 numbers. Number i has its low bits in the low half of byte i of `nibbles`,
// number i + 16 in the high half.

// The unsigned q of Q4 types.
void take_nibbles(const std::byte* nibbles, std::array<int, kGgufBlock>& q) {
  for (std::size_t i = 0; i < kHalf; ++i) {
    q[i] = static_cast<int>(byte_at(nibbles, i) & 15);
    q[i + kHalf] = static_cast<int>(byte_at(nibbles, i) >> 4);
  }
}

// The unsigned q of Q5 types: bit i of `fifth` belongs to number i.
void take_five_bits(const std::byte* fifth, const std::byte* nibbles, std::array<int, kGgufBlock>& q) {
  take_nibbles(nibbles, q);
  const auto bits = loaded<std::uint32_t>(fifth);
  for (std::size_t i = 0; i < kGgufBlock; ++i) q[i] |= static_cast<int>(bits >> i & 1) << 4;
}

void split_q4_0(const std::byte* from, float* integers, float* scale) {
  std::array<int, kGgufBlock> q;
  take_nibbles(from + 2, q);
  *scale = half_at(from);
  for (std::size_t i = 0; i < kGgufBlock; ++i) integers[i] = static_cast<float>(q[i] - 8);
}

void split_q5_0(const std::byte* from, float* integers, float* scale) {
  std::array<int, kGgufBlock> q;
  take_five_bits(from + 2, from + 6, q);
  *scale = half_at(from);
  for (std::size_t i = 0; i < kGgufBlock; ++i) integers[i] = static_cast<float>(q[i] - 16);
}

void split_q8_0(const std::byte* from, float* integers, float* scale) {
  *scale = half_at(from);
  for (std::size_t i = 0; i < kGgufBlock; ++i)
    integers[i] = static_cast<float>(loaded<std::int8_t>(from + 2 + i));
}

void add_minimum(const std::byte* from, const std::array<int, kGgufBlock>& q, float* x) {
  const float d = half_at(from), m = half_at(from + 2);
  for (std::size_t i = 0; i < kGgufBlock; ++i) x[i] = static_cast<float>(q[i]) * d + m;
}

void decode_q4_1(const std::byte* from, float* x) {
  std::array<int, kGgufBlock> q;
  take_nibbles(from + 4, q);
  add_minimum(from, q, x);
}

void decode_q5_1(const std::byte* from, float* x) {
  std::array<int, kGgufBlock> q;
  take_five_bits(from + 4, from + 8, q);
  add_minimum(from, q, x);
}

// ---- Types of 256 numbers. Fields of 2, 4 or 6 bits are interleaved so that SIMD code can extract
// 32 numbers with one shift.

// Number i of a field of 2 bits: byte i % 32 of each half, two bits for every 32 numbers.
unsigned two_bits(const std::byte* from, std::size_t i) {
  return byte_at(from, i / 128 * 32 + i % 32) >> (i / 32 % 4 * 2) & 3;
}

void decode_q2_k(const std::byte* from, float* x) {
  const std::byte *scales = from, *q = from + 16;
  const float d = half_at(from + 80), dmin = half_at(from + 82);
  for (std::size_t i = 0; i < kGgufSuperBlock; ++i) {
    const unsigned both = byte_at(scales, i / 16);
    x[i] = d * static_cast<float>(both & 15) * static_cast<float>(two_bits(q, i)) -
           dmin * static_cast<float>(both >> 4);
  }
}

// A missing bit in `high` subtracts 4.
void decode_q3_k(const std::byte* from, float* x) {
  const std::byte *high = from, *q = from + 32, *scales = from + 96;
  const float d = half_at(from + 108);
  const auto scale = [&](std::size_t j) {
    const unsigned low = byte_at(scales, j % 8) >> (j / 8 * 4) & 15;
    return static_cast<int>(low | (byte_at(scales, 8 + j % 4) >> (j / 4 * 2) & 3) << 4) - 32;
  };
  for (std::size_t i = 0; i < kGgufSuperBlock; ++i) {
    const bool third = (byte_at(high, i % 32) >> (i / 32) & 1) != 0;
    const int number = static_cast<int>(two_bits(q, i)) - (third ? 0 : 4);
    x[i] = d * static_cast<float>(scale(i / 16)) * static_cast<float>(number);
  }
}

struct ScaleAndMin {
  unsigned scale, min;
};

// Of the 32 numbers from 32 j, packed into 12 bytes. The first four pairs are the low 6 bits of
// bytes 0 to 7; the last four have 4 bits in bytes 8 to 11 and 2 in the high bits of bytes 0 to 7.
ScaleAndMin scale_and_min(const std::byte* packed, std::size_t j) {
  if (j < 4) return {byte_at(packed, j) & 63, byte_at(packed, j + 4) & 63};
  return {(byte_at(packed, j + 4) & 15) | byte_at(packed, j - 4) >> 6 << 4,
          byte_at(packed, j + 4) >> 4 | byte_at(packed, j) >> 6 << 4};
}

// Numbers 64 k to 64 k + 31 are the low halves of bytes 32 k to 32 k + 31, the next 32 the high
// halves.
unsigned nibble_of_64(const std::byte* from, std::size_t i) {
  return byte_at(from, i / 64 * 32 + i % 32) >> (i / 32 % 2 * 4) & 15;
}

template <class Number>
void decode_with_mins(const std::byte* from, float* x, const Number& number) {
  const float d = half_at(from), dmin = half_at(from + 2);
  for (std::size_t j = 0; j < 8; ++j) {
    const auto [s, t] = scale_and_min(from + 4, j);
    const float scale = d * static_cast<float>(s), min = dmin * static_cast<float>(t);
    for (std::size_t i = j * 32; i < j * 32 + 32; ++i) x[i] = scale * static_cast<float>(number(i)) - min;
  }
}

void decode_q4_k(const std::byte* from, float* x) {
  decode_with_mins(from, x, [&](std::size_t i) { return nibble_of_64(from + 16, i); });
}

void decode_q5_k(const std::byte* from, float* x) {
  decode_with_mins(from, x, [&](std::size_t i) {
    return nibble_of_64(from + 48, i) | (byte_at(from + 16, i % 32) >> (i / 32) & 1) << 4;
  });
}

void decode_q6_k(const std::byte* from, float* x) {
  const std::byte *low = from, *high = from + 128, *scales = from + 192;
  const float d = half_at(from + 208);
  for (std::size_t i = 0; i < kGgufSuperBlock; ++i) {
    const unsigned four = byte_at(low, i / 128 * 64 + i % 64) >> (i / 64 % 2 * 4) & 15;
    const int number = static_cast<int>(four | two_bits(high, i) << 4) - 32;
    x[i] = d * static_cast<float>(loaded<std::int8_t>(scales + i / 16)) * static_cast<float>(number);
  }
}

constexpr std::array<float, 16> kIq4Values = {-127, -104, -83, -65, -49, -35, -22, -10,
                                              1,    13,   25,  38,  53,  69,  89,  113};

void take_iq4_values(const std::byte* nibbles, float* values) {
  for (std::size_t i = 0; i < kHalf; ++i) {
    values[i] = kIq4Values[byte_at(nibbles, i) & 15];
    values[i + kHalf] = kIq4Values[byte_at(nibbles, i) >> 4];
  }
}

void split_iq4_nl(const std::byte* from, float* integers, float* scale) {
  *scale = half_at(from);
  take_iq4_values(from + 2, integers);
}

void split_iq4_xs(const std::byte* from, float* integers, float* scales) {
  const float d = half_at(from);
  const auto high = loaded<std::uint16_t>(from + 2);
  for (std::size_t j = 0; j < 8; ++j) {
    const unsigned low = byte_at(from + 4, j / 2) >> (j % 2 * 4) & 15;
    scales[j] = d * static_cast<float>(static_cast<int>(low | (high >> (2 * j) & 3u) << 4) - 32);
    take_iq4_values(from + 8 + j * kHalf, integers + j * kGgufBlock);
  }
}

// ---- Quantizers of types of 32 numbers.

// ggml multiplies by the inverse; x / d could round differently. If the inverse overflows f32, d
// rounds to 0 in f16.
float inverse(float d) {
  const float inverse = 1.0f / d;
  return std::isfinite(inverse) ? inverse : 0.0f;
}

void encode_q8_0(const float* x, std::byte* to) {
  float largest = 0;
  for (std::size_t i = 0; i < kGgufBlock; ++i) largest = std::max(largest, std::abs(x[i]));
  const float d = largest / 127;
  const float factor = inverse(d);
  store(to, half_scale(d));
  for (std::size_t i = 0; i < kGgufBlock; ++i)
    store(to + 2 + i, static_cast<std::int8_t>(std::round(x[i] * factor)));
}

void put_nibbles(const std::array<int, kGgufBlock>& q, std::byte* to) {
  for (std::size_t i = 0; i < kHalf; ++i)
    store(to + i, static_cast<std::uint8_t>((q[i] & 15) | (q[i + kHalf] & 15) << 4));
}

void put_five_bits(const std::array<int, kGgufBlock>& q, std::byte* fifth, std::byte* nibbles) {
  std::uint32_t bits = 0;
  for (std::size_t i = 0; i < kGgufBlock; ++i) bits |= static_cast<std::uint32_t>(q[i] >> 4) << i;
  store(fifth, bits);
  put_nibbles(q, nibbles);
}

// Returns d. `middle` is the q of zero: 8 or 16.
float quantize_signed(const float* x, int middle, std::array<int, kGgufBlock>& q) {
  float largest = 0;  // the first value of largest magnitude
  for (std::size_t i = 0; i < kGgufBlock; ++i)
    if (std::abs(x[i]) > std::abs(largest)) largest = x[i];
  const float d = largest / static_cast<float>(-middle);
  const float factor = inverse(d);
  for (std::size_t i = 0; i < kGgufBlock; ++i) {
    const float scaled = x[i] * factor;
    q[i] = std::min(2 * middle - 1, static_cast<int>(scaled + (static_cast<float>(middle) + 0.5f)));
  }
  return d;
}

void encode_q4_0(const float* x, std::byte* to) {
  std::array<int, kGgufBlock> q;
  store(to, half_scale(quantize_signed(x, 8, q)));
  put_nibbles(q, to + 2);
}

void encode_q5_0(const float* x, std::byte* to) {
  std::array<int, kGgufBlock> q;
  store(to, half_scale(quantize_signed(x, 16, q)));
  put_five_bits(q, to + 2, to + 6);
}

void encode_q5_1(const float* x, std::byte* to) {
  const auto [least, most] = std::minmax_element(x, x + kGgufBlock);
  const float d = (*most - *least) / 31;
  const float factor = inverse(d);
  std::array<int, kGgufBlock> q;
  for (std::size_t i = 0; i < kGgufBlock; ++i) {
    const float scaled = (x[i] - *least) * factor;
    q[i] = static_cast<int>(scaled + 0.5f);
  }
  store(to, half_scale(d));
  store(to + 2, half_scale(*least));
  put_five_bits(q, to + 4, to + 8);
}

constexpr std::array<GgufBlockFormat, 12> kFormats = {{
    {{GgufType::q8_0, "Q8_0", "q8_0", 7, 32, 34}, nullptr, split_q8_0, encode_q8_0},
    {{GgufType::q4_0, "Q4_0", "q4_0", 2, 32, 18}, nullptr, split_q4_0, encode_q4_0},
    {{GgufType::q4_1, "Q4_1", "", 3, 32, 20}, decode_q4_1, nullptr, nullptr},
    {{GgufType::q5_0, "Q5_0", "", 8, 32, 22}, nullptr, split_q5_0, encode_q5_0},
    {{GgufType::q5_1, "Q5_1", "", 9, 32, 24}, decode_q5_1, nullptr, encode_q5_1},
    {{GgufType::q2_k, "Q2_K", "", 10, 256, 84}, decode_q2_k, nullptr, nullptr},
    {{GgufType::q3_k, "Q3_K", "", 12, 256, 110}, decode_q3_k, nullptr, nullptr},
    {{GgufType::q4_k, "Q4_K", "q4_k_m", 15, 256, 144}, decode_q4_k, nullptr, encode_q4_k},
    {{GgufType::q5_k, "Q5_K", "q5_k_m", 17, 256, 176}, decode_q5_k, nullptr, encode_q5_k},
    {{GgufType::q6_k, "Q6_K", "q6_k", 18, 256, 210}, decode_q6_k, nullptr, encode_q6_k},
    {{GgufType::iq4_nl, "IQ4_NL", "", 25, 32, 18}, nullptr, split_iq4_nl, nullptr},
    {{GgufType::iq4_xs, "IQ4_XS", "", 30, 256, 136}, nullptr, split_iq4_xs, nullptr},
}};

}  // namespace

std::span<const GgufBlockFormat> gguf_block_formats() {
  return kFormats;
}

const GgufBlockFormat* find_block_format(GgufType type) {
  for (const GgufBlockFormat& format : kFormats)
    if (format.info.type == type) return &format;
  return nullptr;
}

std::uint16_t half_scale(float d) {
  const f16 half = to_f16(d);
  check(std::isfinite(to_f32(half)), Hint{"export with --type f32 or bf16"},
        "the scale of a block, {}, is too large for f16", d);
  return half.bits;
}

}  // namespace thimble
