#include "formats/gguf_blocks.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "tensor/tensor.h"

namespace thimble {

namespace {

constexpr std::size_t kHalf = kGgufBlock / 2;

template <class T>
void store(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof value);
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
    {gguf_info(GgufType::q8_0, "Q8_0", "q8_0", 7), encode_q8_0},
    {gguf_info(GgufType::q4_0, "Q4_0", "q4_0", 2), encode_q4_0},
    {gguf_info(GgufType::q4_1, "Q4_1", "", 3), nullptr},
    {gguf_info(GgufType::q5_0, "Q5_0", "", 8), encode_q5_0},
    {gguf_info(GgufType::q5_1, "Q5_1", "", 9), encode_q5_1},
    {gguf_info(GgufType::q2_k, "Q2_K", "", 10), nullptr},
    {gguf_info(GgufType::q3_k, "Q3_K", "", 12), nullptr},
    {gguf_info(GgufType::q4_k, "Q4_K", "q4_k_m", 15), encode_q4_k},
    {gguf_info(GgufType::q5_k, "Q5_K", "q5_k_m", 17), encode_q5_k},
    {gguf_info(GgufType::q6_k, "Q6_K", "q6_k", 18), encode_q6_k},
    {gguf_info(GgufType::iq4_nl, "IQ4_NL", "", 25), nullptr},
    {gguf_info(GgufType::iq4_xs, "IQ4_XS", "", 30), nullptr},
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
