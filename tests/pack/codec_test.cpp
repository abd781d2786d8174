// Codecs: exact round trips, and rejection of damaged data.
#include "pack/codec.h"

#include <random>

#include "base/error.h"

namespace thimble::codec_test {
namespace {

using Bytes = std::vector<std::byte>;

Bytes sample(std::size_t size) {
  std::mt19937 random(3);
  Bytes bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random() % 11);
  return bytes;
}

class EveryCodec : public testing::TestWithParam<Codec> {};
INSTANTIATE_TEST_SUITE_P(Codec, EveryCodec, testing::Values(Codec::zstd, Codec::zlib, Codec::range),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST_P(EveryCodec, RoundTripsExactly) {
  for (const std::size_t size : {0u, 1u, 2u, 1000u, 1u << 18, (1u << 18) + 1}) {
    const Bytes bytes = sample(size), stored = compress(bytes, GetParam());
    Bytes back(size, std::byte{77});
    decompress(stored, GetParam(), back);
    EXPECT_EQ(back, bytes) << size;
    if (size == 1000) {
      EXPECT_EQ(compress(bytes, GetParam()), stored) << "deterministic";
      EXPECT_LT(stored.size(), 600u);
    }
  }
}

TEST_P(EveryCodec, ReportsEveryByteAndCanBeStopped) {
  const Bytes bytes = sample(300'000);
  std::size_t seen = 0;
  compress(bytes, GetParam(), [&](std::size_t count) { seen += count; });
  EXPECT_EQ(seen, bytes.size());
  EXPECT_THROW(compress(bytes, GetParam(), [](std::size_t) { fail("stop"); }), Error);
}

TEST_P(EveryCodec, RejectsWrongSizesAndDamagedData) {
  const Bytes bytes = sample(5000);
  const Bytes stored = compress(bytes, GetParam());
  Bytes shorter(4999), longer(5001), same(5000);
  EXPECT_THROW(decompress(stored, GetParam(), shorter), Error);
  EXPECT_THROW(decompress(stored, GetParam(), longer), Error);
  EXPECT_THROW(decompress(std::span(stored).first(stored.size() - 1), GetParam(), same), Error);
  EXPECT_THROW(decompress({}, GetParam(), same), Error);
  Bytes more = stored;
  more.push_back(std::byte{1});
  EXPECT_THROW(decompress(more, GetParam(), same), Error);
  for (std::size_t i = 0; i < stored.size(); i += 7) {  // must stay in bounds, whatever the result
    Bytes broken = stored;
    broken[i] ^= std::byte{0x10};
    try {
      decompress(broken, GetParam(), same);
    } catch (const Error&) {
    }
  }
}

TEST(Codec, ZstdRefersToAPrefix) {
  const Bytes prefix = sample(50'000);
  Bytes bytes(prefix.begin() + 1000, prefix.end());
  bytes[5] = std::byte{200};
  const Bytes alone = compress(bytes, Codec::zstd), referring = compress(bytes, Codec::zstd, {}, prefix);
  EXPECT_LT(referring.size(), 200u);
  EXPECT_GT(alone.size(), 15'000u);
  Bytes back(bytes.size());
  decompress(referring, Codec::zstd, back, prefix);
  EXPECT_EQ(back, bytes);
  EXPECT_THROW(compress(bytes, Codec::zlib, {}, prefix), Error);
}

}  // namespace
}  // namespace thimble::codec_test
