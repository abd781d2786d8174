// The range coder: exact round trips, a size near the entropy, and rejection of damaged data.
#include "pack/range_codec.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "base/error.h"
#include "pack/codec.h"
#include "pack/small_model.h"

namespace thimble::range_codec_test {
namespace {

using Bytes = std::vector<std::byte>;

Bytes back(std::span<const std::byte> stored, std::size_t size) {
  Bytes bytes(size, std::byte{77});
  range_decompress(stored, bytes);
  return bytes;
}

// Rounded normal numbers with a different deviation in each column.
Bytes rows(std::size_t count, std::size_t width, double deviation, double spread) {
  std::mt19937 random(5);
  std::normal_distribution<double> normal(0, 1);
  std::vector<double> columns(width);
  for (double& column : columns) column = deviation * std::exp(spread * normal(random));
  Bytes bytes;
  for (std::size_t i = 0; i < count * width; ++i)
    bytes.push_back(static_cast<std::byte>(static_cast<std::int8_t>(
        std::clamp(std::round(columns[i % width] * normal(random)), -127.0, 127.0))));
  return bytes;
}

TEST(RangeCodec, RoundTripsEveryValueInRowsOfAnyWidth) {
  Bytes all;
  for (int repeat = 0; repeat < 3; ++repeat)
    for (int value = -128; value < 128; ++value) all.push_back(static_cast<std::byte>(value));
  for (const std::uint32_t width : {1u, 7u, 256u, 1000u})
    for (const std::uint64_t integers : {0u, 1u, 700u, 768u})
      EXPECT_EQ(back(range_compress(all, {integers, width}), all.size()), all) << width << ", " << integers;
  EXPECT_TRUE(back(range_compress({}, {}), 0).empty());
}

// The entropy of a rounded normal number: 0.5 log2(2 pi e) + log2(deviation) bits.
TEST(RangeCodec, ApproachesTheEntropyOfNormalNumbers) {
  const Bytes bytes = rows(1000, 300, 2.4, 0);
  const double entropy = 0.5 * std::log2(2 * M_PI * M_E) + std::log2(2.4);
  const double bits = 8.0 * static_cast<double>(range_compress(bytes, {bytes.size(), 300}).size()) / 300'000;
  EXPECT_NEAR(bits, entropy, 0.015 * entropy);
}

TEST(RangeCodec, ExploitsColumnsBetterThanZstd) {
  const Bytes bytes = rows(1000, 300, 3, 0.5);
  const Bytes coded = range_compress(bytes, {bytes.size(), 300});
  EXPECT_LT(static_cast<double>(coded.size()),
            0.96 * static_cast<double>(compress(bytes, Codec::zstd).size()));
  EXPECT_EQ(back(coded, bytes.size()), bytes);
}

TEST(RangeCodec, RejectsDamagedData) {
  const Bytes bytes = rows(50, 20, 3, 0.5), stored = range_compress(bytes, {bytes.size(), 20});
  EXPECT_THROW(range_compress(bytes, {bytes.size() + 1, 20}), Error);
  EXPECT_THROW(range_compress(bytes, {1, 0}), Error);
  EXPECT_THROW(back(stored, bytes.size() - 1), Error);
  EXPECT_THROW(back(std::span(stored).first(stored.size() - 1), bytes.size()), Error);
  EXPECT_THROW(back(std::span(stored).first(10), bytes.size()), Error);
  Bytes more = stored;
  more.push_back(std::byte{0});
  EXPECT_THROW(back(more, bytes.size()), Error);
  for (const auto& [at, value] : {std::pair{8, 0xff}, {15, 1}, {16, 0}, {19, 0xff}}) {  // integers, width
    Bytes broken = stored;
    broken[static_cast<std::size_t>(at)] = static_cast<std::byte>(value);
    if (at == 16) broken[17] = broken[18] = broken[19] = std::byte{0};
    EXPECT_THROW(back(broken, bytes.size()), Error) << at;
  }
}

// The tables are integers, because a difference between machines would make files unreadable.
TEST(BitMixer, TablesAreInverseToEachOther) {
  for (std::int32_t x = -2047; x < 2047; ++x) EXPECT_LE(squash(x), squash(x + 1)) << x;
  for (std::int32_t x = -1500; x <= 1500; ++x)
    EXPECT_NEAR(kStretch[static_cast<std::size_t>(squash(x) >> 4)], x, 30) << x;
  EXPECT_EQ(squash(0), 32768);
  EXPECT_EQ(squash(512), 57724);
}

}  // namespace
}  // namespace thimble::range_codec_test
