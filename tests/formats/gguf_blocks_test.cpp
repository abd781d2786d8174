// Block types: decoded bit for bit as ggml does it, and quantized with at most its error.
#include "formats/gguf_blocks.h"

#include <cmath>
#include <cstring>
#include <ostream>
#include <random>

#include "base/digest.h"
#include "support/message_of.h"

namespace thimble {

void PrintTo(const GgufBlockFormat& format, std::ostream* out) {
  *out << format.info.name;
}

namespace gguf_blocks_test {
namespace {

using Bytes = std::vector<std::byte>;

std::vector<float> decoded(GgufType type, const Bytes& bytes) {
  const GgufTypeInfo& info = info_of(type);
  std::vector<float> out(bytes.size() / static_cast<std::size_t>(info.bytes) *
                         static_cast<std::size_t>(info.block));
  decode_gguf(type, bytes, out);
  return out;
}

Bytes encoded(GgufType type, const std::vector<float>& values) {
  Bytes out(gguf_bytes(type, std::ssize(values)));
  encode_gguf(type, values, out);
  return out;
}

std::vector<float> round_trip(GgufType type, const std::vector<float>& values) {
  return decoded(type, encoded(type, values));
}

double squared_error(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += double{a[i] - b[i]} * double{a[i] - b[i]};
  return sum;
}

struct FromGgml {
  GgufType type;
  std::vector<std::size_t> halves;  // where a block has f16 numbers
  std::string_view digest;          // of the values that ggml's dequantize_row_* (llama.cpp v0.5.0) gives
};

void PrintTo(const FromGgml& from, std::ostream* out) {
  *out << info_of(from.type).name;
}

class EveryBlockType : public testing::TestWithParam<FromGgml> {};

TEST_P(EveryBlockType, DecodesRandomBlocksBitForBitAsGgml) {
  const auto& [type, halves, digest] = GetParam();
  const auto block_bytes = static_cast<std::size_t>(info_of(type).bytes);
  std::mt19937 random(11);
  Bytes bytes(200 * block_bytes);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random() & 255);
  for (std::size_t block = 0; block < bytes.size(); block += block_bytes)
    for (const std::size_t half : halves) bytes[block + half + 1] &= std::byte{0xBF};  // below 2
  const std::vector<float> values = decoded(type, bytes);
  EXPECT_EQ(digest_of(std::as_bytes(std::span(values))).hex(), digest);
}

INSTANTIATE_TEST_SUITE_P(Gguf, EveryBlockType,
                         testing::Values(FromGgml{GgufType::q4_0, {0}, "72e64d684a00d5dc9cbc5d323244855a"},
                                         FromGgml{GgufType::q4_1, {0, 2}, "afc3e5fcf9e2a8442f8f084cf4260360"},
                                         FromGgml{GgufType::q5_0, {0}, "82ae68fb61b9047eaa627e647495106e"},
                                         FromGgml{GgufType::q5_1, {0, 2}, "85a092cb2900f6779a24b72df48ae824"},
                                         FromGgml{GgufType::q8_0, {0}, "1279380f7f448f2a70b63baa07eae78a"},
                                         FromGgml{
                                             GgufType::q2_k, {80, 82}, "d212d8b4823cf315fa29dbcad5f4ba15"},
                                         FromGgml{GgufType::q3_k, {108}, "82a5a826a03865d71b15e5c26f9fb2a8"},
                                         FromGgml{GgufType::q4_k, {0, 2}, "68ef8d2e46e6ce425a895f3c029fe87f"},
                                         FromGgml{GgufType::q5_k, {0, 2}, "2bc75c1c4d168dd80e27c249f6f7c3c2"},
                                         FromGgml{GgufType::q6_k, {208}, "e3d7157556a26a4ef8be27d5a321ba90"},
                                         FromGgml{GgufType::iq4_nl, {0}, "5c9efa26c87edbb1288573687f31b3b2"},
                                         FromGgml{GgufType::iq4_xs, {0}, "c75170cba11a88ce05e6003408cb36f1"}),
                         [](const auto& info) { return std::string(info_of(info.param.type).name); });

TEST(GgufBlocks, EveryFormatHasAGoldenDigest) {
  EXPECT_EQ(gguf_block_formats().size(), 12u);
  for (const GgufBlockFormat& format : gguf_block_formats()) {
    EXPECT_EQ(find_gguf_type(static_cast<std::uint32_t>(format.info.type)), &format.info);
    EXPECT_EQ(gguf_type_name(static_cast<std::uint32_t>(format.info.type)), format.info.name);
  }
}

void put(Bytes& bytes, std::size_t at, std::initializer_list<unsigned> values) {
  for (const unsigned value : values) bytes[at++] = static_cast<std::byte>(value);
}

// Scales 1, 2, 3, 4, 17, 34, 51, 63 and minimums 5, 6, 7, 8, 35, 18, 62, 52, packed by hand.
void put_packed_scales(Bytes& bytes, std::size_t at) {
  put(bytes, at, {0x41, 0x82, 0xC3, 0xC4, 0x85, 0x46, 0xC7, 0xC8, 0x31, 0x22, 0xE3, 0x4F});
}
constexpr std::array<float, 8> kScales = {1, 2, 3, 4, 17, 34, 51, 63};
constexpr std::array<float, 8> kMins = {5, 6, 7, 8, 35, 18, 62, 52};

TEST(GgufBlocks, Q4KAndQ5KHaveTheValuesOfABlockMadeByHand) {
  Bytes q4(144), q5(176);
  for (Bytes* bytes : {&q4, &q5}) {
    put(*bytes, 0, {0x00, 0x3C, 0x00, 0x38});  // d = 1, dmin = 0.5
    put_packed_scales(*bytes, 4);
  }
  std::fill(q4.begin() + 16, q4.end(), std::byte{0xA3});  // 3, then 10 in the next 32
  std::fill(q5.begin() + 48, q5.end(), std::byte{0xA3});
  std::fill(q5.begin() + 16, q5.begin() + 48, std::byte{0x0F});  // 16 more in the first four groups
  const std::vector<float> four = decoded(GgufType::q4_k, q4), five = decoded(GgufType::q5_k, q5);
  for (std::size_t i = 0; i < 256; ++i) {
    const std::size_t j = i / 32;
    const float q = j % 2 == 0 ? 3 : 10;
    EXPECT_EQ(four[i], kScales[j] * q - 0.5f * kMins[j]) << i;
    EXPECT_EQ(five[i], kScales[j] * (q + (j < 4 ? 16 : 0)) - 0.5f * kMins[j]) << i;
  }
}

TEST(GgufBlocks, Q6KHasTheValuesOfABlockMadeByHand) {
  Bytes bytes(210);
  for (std::size_t i = 0; i < 128; ++i) bytes[i] = std::byte{0x51};          // 1 and 5
  for (std::size_t i = 128; i < 192; ++i) bytes[i] = std::byte{0b11100100};  // 0, 1, 2, 3 by 32 numbers
  for (std::size_t i = 0; i < 16; ++i) bytes[192 + i] = static_cast<std::byte>(i - 8);
  put(bytes, 208, {0x00, 0x40});  // d = 2
  const std::vector<float> x = decoded(GgufType::q6_k, bytes);
  for (std::size_t i = 0; i < 256; ++i) {
    const int q = (i % 128 < 64 ? 1 : 5) + 16 * static_cast<int>(i / 32 % 4) - 32;
    EXPECT_EQ(x[i], 2 * (static_cast<float>(i / 16) - 8) * static_cast<float>(q)) << i;
  }
}

// Normal, long-tailed and periodic numbers.
std::vector<float> numbers(int kind) {
  std::vector<float> x(8192);
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0, 0.02f);
  if (kind == 1)  // draws continue where the first kind ends
    for (std::size_t i = 0; i < x.size(); ++i) normal(random);
  for (std::size_t i = 0; i < x.size(); ++i)
    x[i] = kind == 0   ? normal(random)
           : kind == 1 ? 0.02f * std::pow(normal(random) * 50, 3.0f)
                       : 0.1f + 2 * std::cos(static_cast<float>(i));
  return x;
}

// Squared errors of ggml's quantize_row_q4_K_ref, q5_K_ref and q6_K_ref (llama.cpp v0.5.0).
TEST(GgufBlocks, KTypesHaveASmallerErrorThanGgml) {
  const double ggml[3][3] = {
      {0.0165051, 0.00421074, 0.00100278}, {0.431748, 0.131557, 0.0316114}, {32.1831, 9.49737, 2.27396}};
  for (int kind = 0; kind < 3; ++kind) {
    const std::vector<float> x = numbers(kind);
    const double q4 = squared_error(x, round_trip(GgufType::q4_k, x)),
                 q5 = squared_error(x, round_trip(GgufType::q5_k, x)),
                 q6 = squared_error(x, round_trip(GgufType::q6_k, x));
    EXPECT_LT(q4, ggml[kind][0] * 0.97) << kind;
    EXPECT_LT(q5, ggml[kind][1] * 0.95) << kind;
    EXPECT_LT(q6, ggml[kind][2] * 0.97) << kind;
    EXPECT_GT(q4, q5);
    EXPECT_GT(q5, q6);
  }
}

// Output of libggml's quantize_row_q5_0_ref and quantize_row_q5_1_ref.
TEST(GgufBlocks, Q50AndQ51MatchTheBytesOfGgml) {
  std::vector<float> x(64);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = 0.1f + 2 * std::cos(static_cast<float>(i));
  const auto hex = [](const Bytes& bytes) {
    std::string out;
    for (const std::byte byte : bytes) out += fmt::format("{:02x}", std::to_integer<unsigned>(byte));
    return out;
  };
  EXPECT_EQ(hex(encoded(GgufType::q5_0, x)),
            "33b01c87e338e037560e998be174910d5c4fe2b1dd1b33b01cc7713893bf1c4d21d4c1fb292ed5b7e037560e");
  EXPECT_EQ(
      hex(encoded(GgufType::q5_1, x)),
      "21309abfe3781cc71fb8a9f065740e7b6df1a2b01d4e22e41d308abfe1388ec75c4fe2b1dd1b3e04d5d019381fb8a9f0");
}

class WritableType : public testing::TestWithParam<GgufBlockFormat> {};

std::vector<GgufBlockFormat> writable() {
  std::vector<GgufBlockFormat> formats;
  for (const GgufBlockFormat& format : gguf_block_formats())
    if (format.encode) formats.push_back(format);
  return formats;
}

TEST_P(WritableType, KeepsZerosAndConstantsAndVerySmallNumbers) {
  const GgufType type = GetParam().info.type;
  for (const float value : {0.0f, 0.3f, -0.3f, 1e-30f, -1e-40f, std::numeric_limits<float>::denorm_min()}) {
    const std::vector<float> x(256, value);
    for (const float found : round_trip(type, x))
      EXPECT_NEAR(found, value, std::fabs(value) < 1e-6f ? 1e-6f : 0.01f) << value;
  }
}

TEST_P(WritableType, RejectsWhatItCannotRepresent) {
  const GgufType type = GetParam().info.type;
  std::vector<float> x(256, 1.0f);
  x[200] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(message_of([&] { encoded(type, x); }), "nan cannot be quantized");
  x[200] = -std::numeric_limits<float>::infinity();
  EXPECT_EQ(message_of([&] { encoded(type, x); }), "-inf cannot be quantized");
  for (const float large : {1e30f, -3e38f}) {
    x[200] = large;
    EXPECT_TRUE(message_of([&] { encoded(type, x); }).starts_with("the scale of a block, ")) << large;
  }
}

// A block depends on its own numbers only, wherever it is and however many threads there are.
TEST_P(WritableType, QuantizesEveryBlockByItself) {
  const auto& info = GetParam().info;
  const std::vector<float> x = numbers(0);
  const Bytes all = encoded(info.type, x);
  const auto numbers_per_block = static_cast<std::size_t>(info.block);
  for (std::size_t block = 0; block < x.size() / numbers_per_block; block += 7) {
    const auto first = x.begin() + static_cast<std::ptrdiff_t>(block * numbers_per_block);
    const Bytes one = encoded(info.type, {first, first + info.block});
    EXPECT_EQ(std::memcmp(one.data(), &all[block * one.size()], one.size()), 0) << block;
  }
}

INSTANTIATE_TEST_SUITE_P(Gguf, WritableType, testing::ValuesIn(writable()),
                         [](const auto& info) { return std::string(info.param.info.name); });

TEST(GgufBlocks, TypesThatAreOnlyReadAreNotWritten) {
  EXPECT_EQ(message_of([] { encoded(GgufType::q2_k, std::vector<float>(256)); }),
            "thimble reads Q2_K, but does not write it");
  EXPECT_EQ(gguf_type_of("q2_k"), std::nullopt);
  EXPECT_EQ(gguf_type_of(""), std::nullopt);
  EXPECT_EQ(gguf_type_of("q4_k_m"), GgufType::q4_k);
  EXPECT_EQ(gguf_export_name(GgufType::q4_k), "Q4_K_M");
  EXPECT_EQ(gguf_export_name(GgufType::q6_k), "Q6_K");
}

TEST(GgufBlocks, RowsThatDoNotFitGetLlamaCppsNextType) {
  EXPECT_EQ(fitting_type(GgufType::q4_k, 512), GgufType::q4_k);
  EXPECT_EQ(fitting_type(GgufType::q4_k, 896), GgufType::q5_0);
  EXPECT_EQ(fitting_type(GgufType::q5_k, 896), GgufType::q5_1);
  EXPECT_EQ(fitting_type(GgufType::q6_k, 896), GgufType::q8_0);
  EXPECT_EQ(fitting_type(GgufType::q6_k, 100), GgufType::f16);
  EXPECT_EQ(fitting_type(GgufType::q8_0, 100), GgufType::f16);
}

}  // namespace
}  // namespace gguf_blocks_test
}  // namespace thimble
