#include "tensor/block_rows.h"

#include <array>
#include <bit>
#include <cstring>

#include "base/error.h"

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

void put_scaled(const std::byte* from, const std::array<int, kGgufBlock>& q, int middle, float* x) {
  const float d = half_at(from);
  for (std::size_t i = 0; i < kGgufBlock; ++i) x[i] = static_cast<float>(q[i] - middle) * d;
}

void decode_q4_0(const std::byte* from, float* x) {
  std::array<int, kGgufBlock> q;
  take_nibbles(from + 2, q);
  put_scaled(from, q, 8, x);
}

void decode_q5_0(const std::byte* from, float* x) {
  std::array<int, kGgufBlock> q;
  take_five_bits(from + 2, from + 6, q);
  put_scaled(from, q, 16, x);
}

void decode_q8_0(const std::byte* from, float* x) {
  const float d = half_at(from);
  for (std::size_t i = 0; i < kGgufBlock; ++i)
    x[i] = static_cast<float>(loaded<std::int8_t>(from + 2 + i)) * d;
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

int scale_of_q3_k(const std::byte* scales, std::size_t j) {
  const unsigned low = byte_at(scales, j % 8) >> (j / 8 * 4) & 15;
  return static_cast<int>(low | (byte_at(scales, 8 + j % 4) >> (j / 4 * 2) & 3) << 4) - 32;
}

// A missing bit in `high` subtracts 4.
void decode_q3_k(const std::byte* from, float* x) {
  const std::byte *high = from, *q = from + 32, *scales = from + 96;
  const float d = half_at(from + 108);
  for (std::size_t i = 0; i < kGgufSuperBlock; ++i) {
    const bool third = (byte_at(high, i % 32) >> (i / 32) & 1) != 0;
    const int number = static_cast<int>(two_bits(q, i)) - (third ? 0 : 4);
    x[i] = d * static_cast<float>(scale_of_q3_k(scales, i / 16)) * static_cast<float>(number);
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

unsigned q5_k_number(const std::byte* from, std::size_t i) {
  return nibble_of_64(from + 48, i) | (byte_at(from + 16, i % 32) >> (i / 32) & 1) << 4;
}

void decode_q5_k(const std::byte* from, float* x) {
  decode_with_mins(from, x, [&](std::size_t i) { return q5_k_number(from, i); });
}

// Without the 32 that is subtracted.
unsigned q6_k_number(const std::byte* from, std::size_t i) {
  const unsigned four = byte_at(from, i / 128 * 64 + i % 64) >> (i / 64 % 2 * 4) & 15;
  return four | two_bits(from + 128, i) << 4;
}

void decode_q6_k(const std::byte* from, float* x) {
  const std::byte* scales = from + 192;
  const float d = half_at(from + 208);
  for (std::size_t i = 0; i < kGgufSuperBlock; ++i) {
    const int number = static_cast<int>(q6_k_number(from, i)) - 32;
    x[i] = d * static_cast<float>(loaded<std::int8_t>(scales + i / 16)) * static_cast<float>(number);
  }
}

constexpr std::array<float, 16> kIq4Values = {-127, -104, -83, -65, -49, -35, -22, -10,
                                              1,    13,   25,  38,  53,  69,  89,  113};

void put_iq4_values(const std::byte* nibbles, float scale, float* x) {
  for (std::size_t i = 0; i < kHalf; ++i) {
    x[i] = kIq4Values[byte_at(nibbles, i) & 15] * scale;
    x[i + kHalf] = kIq4Values[byte_at(nibbles, i) >> 4] * scale;
  }
}

void decode_iq4_nl(const std::byte* from, float* x) {
  put_iq4_values(from + 2, half_at(from), x);
}

float iq4_xs_scale(const std::byte* from, std::size_t j) {
  const auto high = loaded<std::uint16_t>(from + 2);
  const unsigned low = byte_at(from + 4, j / 2) >> (j % 2 * 4) & 15;
  return half_at(from) * static_cast<float>(static_cast<int>(low | (high >> (2 * j) & 3u) << 4) - 32);
}

void decode_iq4_xs(const std::byte* from, float* x) {
  for (std::size_t j = 0; j < kGgufSuperBlock / kGgufBlock; ++j)
    put_iq4_values(from + 8 + j * kHalf, iq4_xs_scale(from, j), x + j * kGgufBlock);
}

// ---- Integers. Each type puts its numbers, then scales and minimums.

void put_numbers(const std::array<int, kGgufBlock>& q, std::uint8_t* to) {
  for (std::size_t i = 0; i < kGgufBlock; ++i) to[i] = static_cast<std::uint8_t>(q[i]);
}

// One scale and a minimum.
void put_one_scale(float scale, float min, const BlockIntegers& to) {
  *to.scales = scale;
  *to.mins = min;
}

constexpr float kMiddleOfBytes = 128;  // added to signed bytes

void take_iq4_values(const std::byte* nibbles, std::uint8_t* to) {
  std::array<int, kGgufBlock> q;
  take_nibbles(nibbles, q);
  for (int& number : q)
    number = static_cast<int>(kIq4Values[static_cast<std::size_t>(number)] + kMiddleOfBytes);
  put_numbers(q, to);
}

void take_types_of_32(GgufType type, const std::byte* from, const BlockIntegers& to) {
  const bool minimum = type == GgufType::q4_1 || type == GgufType::q5_1;
  const bool fifth = type == GgufType::q5_0 || type == GgufType::q5_1;
  const float d = half_at(from);
  const std::byte* const after = from + (minimum ? 4 : 2);
  if (type == GgufType::q8_0) {
    for (std::size_t i = 0; i < kGgufBlock; ++i)
      to.numbers[i] = static_cast<std::uint8_t>(loaded<std::int8_t>(after + i) + 128);
    return put_one_scale(d, d * kMiddleOfBytes, to);
  }
  if (type == GgufType::iq4_nl) {
    take_iq4_values(after, to.numbers);
    return put_one_scale(d, d * kMiddleOfBytes, to);
  }
  std::array<int, kGgufBlock> q;
  fifth ? take_five_bits(after, after + 4, q) : take_nibbles(after, q);
  put_numbers(q, to.numbers);
  put_one_scale(d, minimum ? -half_at(from + 2) : d * (fifth ? 16 : 8), to);
}

// Q3_K: the number without the 4 that a missing bit subtracts.
void take_q3_k(const std::byte* from, const BlockIntegers& to) {
  const std::byte *high = from, *q = from + 32;
  const float d = half_at(from + 108);
  for (std::size_t i = 0; i < kGgufSuperBlock; ++i)
    to.numbers[i] = static_cast<std::uint8_t>(two_bits(q, i) | (byte_at(high, i % 32) >> (i / 32) & 1) << 2);
  for (std::size_t j = 0; j < kGgufSuperBlock / 16; ++j) {
    to.scales[j] = d * static_cast<float>(scale_of_q3_k(from + 96, j));
    to.mins[j] = to.scales[j] * 4;
  }
}

void take_integers_of_256(GgufType type, const std::byte* from, const BlockIntegers& to) {
  const auto with_mins = [&](auto number) {
    const float d = half_at(from), dmin = half_at(from + 2);
    for (std::size_t j = 0; j < 8; ++j) {
      const auto [s, t] = scale_and_min(from + 4, j);
      to.scales[j] = d * static_cast<float>(s);
      to.mins[j] = dmin * static_cast<float>(t);
    }
    for (std::size_t i = 0; i < kGgufSuperBlock; ++i) to.numbers[i] = static_cast<std::uint8_t>(number(i));
  };
  switch (type) {
    case GgufType::q2_k:
      for (std::size_t j = 0; j < kGgufSuperBlock / 16; ++j) {
        to.scales[j] = half_at(from + 80) * static_cast<float>(byte_at(from, j) & 15);
        to.mins[j] = half_at(from + 82) * static_cast<float>(byte_at(from, j) >> 4);
      }
      for (std::size_t i = 0; i < kGgufSuperBlock; ++i)
        to.numbers[i] = static_cast<std::uint8_t>(two_bits(from + 16, i));
      return;
    case GgufType::q3_k:
      return take_q3_k(from, to);
    case GgufType::q4_k:
      return with_mins([&](std::size_t i) { return nibble_of_64(from + 16, i); });
    case GgufType::q5_k:
      return with_mins([&](std::size_t i) { return q5_k_number(from, i); });
    case GgufType::q6_k:
      for (std::size_t i = 0; i < kGgufSuperBlock; ++i)
        to.numbers[i] = static_cast<std::uint8_t>(q6_k_number(from, i));
      for (std::size_t j = 0; j < kGgufSuperBlock / 16; ++j) {
        to.scales[j] = half_at(from + 208) * static_cast<float>(loaded<std::int8_t>(from + 192 + j));
        to.mins[j] = to.scales[j] * 32;
      }
      return;
    default:  // IQ4_XS
      for (std::size_t j = 0; j < kGgufSuperBlock / kGgufBlock; ++j) {
        to.scales[j] = iq4_xs_scale(from, j);
        to.mins[j] = to.scales[j] * kMiddleOfBytes;
        take_iq4_values(from + 8 + j * kHalf, to.numbers + j * kGgufBlock);
      }
  }
}

using Decode = void (*)(const std::byte* block, float* values);

Decode decoder_of(GgufType type) {
  switch (type) {
    case GgufType::q4_0:
      return decode_q4_0;
    case GgufType::q4_1:
      return decode_q4_1;
    case GgufType::q5_0:
      return decode_q5_0;
    case GgufType::q5_1:
      return decode_q5_1;
    case GgufType::q8_0:
      return decode_q8_0;
    case GgufType::q2_k:
      return decode_q2_k;
    case GgufType::q3_k:
      return decode_q3_k;
    case GgufType::q4_k:
      return decode_q4_k;
    case GgufType::q5_k:
      return decode_q5_k;
    case GgufType::q6_k:
      return decode_q6_k;
    case GgufType::iq4_nl:
      return decode_iq4_nl;
    case GgufType::iq4_xs:
      return decode_iq4_xs;
    case GgufType::f32:
      return [](const std::byte* from, float* x) { *x = loaded<float>(from); };
    case GgufType::f16:
      return [](const std::byte* from, float* x) { *x = half_at(from); };
    case GgufType::bf16:
      return [](const std::byte* from, float* x) { *x = to_f32(bf16{loaded<std::uint16_t>(from)}); };
  }
  fail("[blocks] unknown type {}", static_cast<unsigned>(type));
}

}  // namespace

void decode_blocks(GgufType type, std::span<const std::byte> bytes, std::span<float> values) {
  const BlockSize size = block_size(type);
  check(std::cmp_equal(bytes.size(), block_bytes(type, std::ssize(values))) &&
            std::ssize(values) % size.numbers == 0,
        "[blocks] {} numbers do not fit {} bytes", values.size(), bytes.size());
  const Decode decode = decoder_of(type);
  float* to = values.data();
  for (std::size_t at = 0; at < bytes.size(); at += index_of(size.bytes), to += size.numbers)
    decode(&bytes[at], to);
}

void take_integers(GgufType type, const std::byte* block, const BlockIntegers& to) {
  block_size(type).numbers == 32 ? take_types_of_32(type, block, to) : take_integers_of_256(type, block, to);
}

Tensor block_tensor(const BlockMatrix& matrix) {
  std::int64_t rows = 0;
  for (const BlockRows& part : matrix.parts) rows += part.rows;
  const std::int64_t cols = matrix.parts.front().cols;
  // The Tensor type has no constant data; nothing writes to stored matrices.
  return {const_cast<BlockMatrix*>(&matrix), rows, cols, cols, DType::blocks, Device::cpu};
}

}  // namespace thimble
