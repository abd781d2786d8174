// Storage types: bit-identical to what ggml writes.
#include "formats/gguf_types.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <random>

#include "support/message_of.h"
#include "tensor/tensor.h"

namespace thimble::gguf_types_test {
namespace {

// Implements the format's description independently; shares only the conversion to f16.
std::string slow_q8_0(const std::vector<float>& x) {
  std::string out;
  for (std::size_t block = 0; block < x.size(); block += 32) {
    float largest = 0;
    for (std::size_t i = block; i < block + 32; ++i)
      if (std::fabs(x[i]) > largest) largest = std::fabs(x[i]);
    const float d = largest / 127.0f, inverse = d == 0 ? 0 : 1.0f / d;
    const std::uint16_t scale = to_f16(d).bits;
    out += static_cast<char>(scale & 255);
    out += static_cast<char>(scale >> 8);
    for (std::size_t i = block; i < block + 32; ++i) {
      const float scaled = x[i] * inverse;
      float whole = std::trunc(scaled);
      if (std::fabs(scaled - whole) >= 0.5f) whole += scaled < 0 ? -1.0f : 1.0f;  // halves away from zero
      out += static_cast<char>(static_cast<int>(whole));
    }
  }
  return out;
}

std::string slow_q4_0(const std::vector<float>& x) {
  std::string out;
  for (std::size_t block = 0; block < x.size(); block += 32) {
    std::size_t largest = block;
    for (std::size_t i = block; i < block + 32; ++i)
      if (std::fabs(x[i]) > std::fabs(x[largest])) largest = i;
    const float d = x[largest] / -8.0f, inverse = d == 0 ? 0 : 1.0f / d;
    const std::uint16_t scale = to_f16(d).bits;
    out += static_cast<char>(scale & 255);
    out += static_cast<char>(scale >> 8);
    const auto level = [&](std::size_t i) {
      const float shifted = x[i] * inverse + 8.5f;
      int whole = 0;
      while (whole < 15 && static_cast<float>(whole + 1) <= shifted) ++whole;
      return whole;
    };
    for (std::size_t i = block; i < block + 16; ++i) out += static_cast<char>(level(i) + 16 * level(i + 16));
  }
  return out;
}

std::string encoded(GgufType type, const std::vector<float>& x) {
  std::string out(gguf_bytes(type, std::ssize(x)), '\0');
  encode_gguf(type, x, std::as_writable_bytes(std::span(out)));
  return out;
}

std::vector<float> decoded(GgufType type, const std::string& bytes, std::size_t count) {
  std::vector<float> out(count);
  decode_gguf(type, std::as_bytes(std::span(bytes)), out);
  return out;
}

std::string hex(const std::string& bytes) {
  std::string out;
  for (const char byte : bytes) out += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return out;
}

// The test data of ggml's own test of its types.
std::vector<float> cosines(std::size_t count) {
  std::vector<float> x(count);
  for (std::size_t i = 0; i < count; ++i) x[i] = 0.1f + 2 * std::cos(static_cast<float>(i));
  return x;
}

// Scales from tiny to large, multiples of half a step, blocks of zeros and of equal magnitudes.
std::vector<std::vector<float>> many_rows() {
  std::mt19937 random(7);
  std::vector<std::vector<float>> rows;
  for (int round = 0; round < 3000; ++round) {
    const float scale = std::exp2(static_cast<float>(random() % 30) - 24);
    std::normal_distribution<float> normal(0, scale);
    std::vector<float> x(96);
    for (float& value : x)
      value = round % 7 == 0 ? static_cast<float>(static_cast<int>(random() % 255) - 127) * scale / 2
                             : normal(random);
    if (round % 11 == 0) std::fill_n(x.begin(), 32, 0.0f);
    if (round % 13 == 0)
      for (std::size_t i = 32; i < 64; ++i) x[i] = i % 2 == 0 ? scale : -scale;
    rows.push_back(std::move(x));
  }
  return rows;
}

TEST(GgufTypes, Q8AndQ4MatchASlowReferenceBitForBit) {
  for (const std::vector<float>& x : many_rows()) {
    ASSERT_EQ(hex(encoded(GgufType::q8_0, x)), hex(slow_q8_0(x)));
    ASSERT_EQ(hex(encoded(GgufType::q4_0, x)), hex(slow_q4_0(x)));
  }
}

// Output of libggml's quantize_row_q8_0_ref and quantize_row_q4_0_ref (llama.cpp v0.5.0).
TEST(GgufTypes, Q8AndQ4MatchTheBytesOfGgml) {
  EXPECT_EQ(hex(encoded(GgufType::q8_0, cosines(64))),
            "3c247f47d48eb7287a61f498a1076c7417aa92e5567e37c48dc6397e54e392ac1975"
            "3c246b049f99f7637a26b58fd6497f46d28eb92a7b60f297a2096d7314a993e7587d");
  EXPECT_EQ(hex(encoded(GgufType::q4_0, cosines(64))),
            "33b4f0a43b0f5dc5f0c2490f3ea8f1d1671d33b4c1580e2f99f2e0761d1f7bd3f0a42b0f");
}

TEST(GgufTypes, ErrorIsWithinHalfAStep) {
  const std::vector<float> x = cosines(4096);
  const auto worst = [&](GgufType type) {
    const std::vector<float> y = decoded(type, encoded(type, x), x.size());
    float largest = 0;
    for (std::size_t i = 0; i < x.size(); ++i) largest = std::max(largest, std::fabs(x[i] - y[i]));
    return largest;
  };
  EXPECT_EQ(worst(GgufType::f32), 0);
  EXPECT_LE(worst(GgufType::f16), 0x1p-10f);  // below 4: half of 2^-9
  EXPECT_LE(worst(GgufType::bf16), 0x1p-7f);  // below 4: half of 2^-6
  EXPECT_LE(worst(GgufType::q8_0),
            2.1f / 127 / 2 + 2.1f * 0x1p-11f);         // half a step, plus the rounding of the scale
  EXPECT_LE(worst(GgufType::q4_0), 2.1f / 8 * 1.01f);  // the positive end has no level: a full step
  EXPECT_GT(worst(GgufType::q4_0), worst(GgufType::q8_0));
}

TEST(GgufTypes, SizesMatchTheFormat) {
  EXPECT_EQ(gguf_bytes(GgufType::f32, 64), 256u);
  EXPECT_EQ(gguf_bytes(GgufType::f16, 64), 128u);
  EXPECT_EQ(gguf_bytes(GgufType::bf16, 64), 128u);
  EXPECT_EQ(gguf_bytes(GgufType::q8_0, 64), 68u);
  EXPECT_EQ(gguf_bytes(GgufType::q4_0, 64), 36u);
  EXPECT_TRUE(fits_blocks(GgufType::f16, 7));
  EXPECT_FALSE(fits_blocks(GgufType::q8_0, 48));
  EXPECT_EQ(gguf_type_of("q4_0"), GgufType::q4_0);
  EXPECT_EQ(gguf_type_of("q4_k"), std::nullopt);
}

TEST(GgufTypes, UnrepresentableValuesAreRejected) {
  std::vector<float> x(32, 1.0f);
  x[5] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(message_of([&] { encoded(GgufType::q8_0, x); }), "nan cannot be quantized");
  EXPECT_EQ(message_of([&] { encoded(GgufType::q4_0, x); }), "nan cannot be quantized");
  x[5] = 70000;
  EXPECT_EQ(message_of([&] { encoded(GgufType::f16, x); }), "70000 is too large for f16");
  EXPECT_EQ(message_of([&] { encoded(GgufType::q8_0, x); }), "nothing was thrown");
  x[5] = 1e30f;
  EXPECT_TRUE(message_of([&] { encoded(GgufType::q8_0, x); }).starts_with("the scale of a block"));
  x[5] = 1e-40f;  // its inverse is infinite
  std::fill(x.begin(), x.end(), 1e-40f);
  for (const float value : decoded(GgufType::q4_0, encoded(GgufType::q4_0, x), 32)) EXPECT_EQ(value, 0);
}

}  // namespace
}  // namespace thimble::gguf_types_test
