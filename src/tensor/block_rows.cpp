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

void put_iq4_values(const std::byte* nibbles, float scale, float* x) {
  for (std::size_t i = 0; i < kHalf; ++i) {
    x[i] = kIq4Values[byte_at(nibbles, i) & 15] * scale;
    x[i + kHalf] = kIq4Values[byte_at(nibbles, i) >> 4] * scale;
  }
}

void decode_iq4_nl(const std::byte* from, float* x) {
  put_iq4_values(from + 2, half_at(from), x);
}

void decode_iq4_xs(const std::byte* from, float* x) {
  const float d = half_at(from);
  const auto high = loaded<std::uint16_t>(from + 2);
  for (std::size_t j = 0; j < 8; ++j) {
    const unsigned low = byte_at(from + 4, j / 2) >> (j % 2 * 4) & 15;
    const float scale = d * static_cast<float>(static_cast<int>(low | (high >> (2 * j) & 3u) << 4) - 32);
    put_iq4_values(from + 8 + j * kHalf, scale, x + j * kGgufBlock);
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

Tensor block_tensor(const BlockMatrix& matrix) {
  std::int64_t rows = 0;
  for (const BlockRows& part : matrix.parts) rows += part.rows;
  const std::int64_t cols = matrix.parts.front().cols;
  // The Tensor type has no constant data; nothing writes to stored matrices.
  return {const_cast<BlockMatrix*>(&matrix), rows, cols, cols, DType::blocks, Device::cpu};
}

}  // namespace thimble
