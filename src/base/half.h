// bf16 and f16 storage. Arithmetic is f32; conversion to storage rounds to nearest, ties to even.
//
//   bf16  1 sign  8 exponent  7 mantissa   the upper half of an f32
//   f16   1 sign  5 exponent 10 mantissa   IEEE binary16, with subnormals
//
// NaN stays NaN (quiet, sign kept); values too large become infinity; f16 subnormals are exact.
#pragma once

#include <bit>
#include <cstdint>

namespace thimble {

struct bf16 {
  std::uint16_t bits = 0;
};

struct f16 {
  std::uint16_t bits = 0;
};

constexpr float to_f32(bf16 value) {
  return std::bit_cast<float>(std::uint32_t{value.bits} << 16);
}

constexpr bf16 to_bf16(float value) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(value);
  // Rounding could carry a NaN's mantissa over into infinity or the sign: NaN only has its quiet bit set.
  if ((u & 0x7FFFFFFFu) > 0x7F800000u) return {static_cast<std::uint16_t>((u >> 16) | 0x0040u)};
  return {static_cast<std::uint16_t>((u + 0x7FFFu + ((u >> 16) & 1u)) >> 16)};
}

constexpr float to_f32(f16 value) {
  const std::uint32_t sign = (value.bits & 0x8000u) << 16;
  const std::uint32_t magnitude = value.bits & 0x7FFFu;
  if (magnitude >= 0x7C00u) return std::bit_cast<float>(sign | 0x7F800000u | (magnitude & 0x3FFu) << 13);
  if (magnitude >= 0x0400u) return std::bit_cast<float>(sign | ((magnitude << 13) + ((127u - 15u) << 23)));
  const float subnormal = static_cast<float>(magnitude) * 0x1p-24f;
  return sign ? -subnormal : subnormal;
}

constexpr f16 to_f16(float value) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (u >> 16) & 0x8000u;
  const std::uint32_t magnitude = u & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u)
    return {static_cast<std::uint16_t>(sign | 0x7E00u | ((magnitude >> 13) & 0x3FFu))};
  if (magnitude >= 0x477FF000u)
    return {static_cast<std::uint16_t>(sign | 0x7C00u)};  // >= 65520 rounds to infinity
  if (magnitude < 0x38800000u) {
    // Below 2^-14: adding 0.5 makes the FPU align the mantissa to steps of 2^-24 and round it (ties to even).
    const float aligned = std::bit_cast<float>(magnitude) + 0.5f;
    return {static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(aligned) - 0x3F000000u))};
  }
  const std::uint32_t rounded = magnitude + 0x0FFFu + ((magnitude >> 13) & 1u);
  return {static_cast<std::uint16_t>(sign | ((rounded - ((127u - 15u) << 23)) >> 13))};
}

}  // namespace thimble
