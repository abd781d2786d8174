// Tables computed by the loader and the model: sorted rows, bigram buckets, rotations of rope.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "ops/fill.h"

namespace thimble {
namespace {

TEST(SortRows, IsStableAndComplete) {
  Fill fill(&op::kEmbedding);
  for (const std::int64_t count : {0, 1, 2, 17, 1000})
    for (const std::int64_t buckets : {1, 3, 50, 5000}) {
      const Integers index = fill.draws(count, buckets);
      Integers order(index.size(), -1), expected(index.size());
      sort_rows(index, buckets, order);
      std::iota(expected.begin(), expected.end(), 0);
      std::ranges::stable_sort(expected, {},
                               [&](std::int32_t row) { return index[static_cast<std::size_t>(row)]; });
      EXPECT_EQ(order, expected) << count << " rows, " << buckets << " buckets";
    }
}

TEST(SortRows, RejectsIndicesOutsideTheTable) {
  Integers order(3);
  for (const std::int32_t bad : {-1, 5, 100}) {
    try {
      sort_rows(Integers{0, bad, 4}, 5, order);
      ADD_FAILURE() << bad << " was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(std::string(error.what()),
                fmt::format("[embedding] row 1 has index {}, the table has 5 rows", bad));
    }
  }
  EXPECT_THROW(sort_rows(Integers{0, 1}, 5, order), Error);
}

// Wrapping 32-bit products, computed in 64 bits, and a non-negative remainder (as in Python).
std::int64_t slow_bigram_bucket(std::int64_t token, std::int64_t previous, std::int64_t buckets) {
  const auto wrap = [](std::int64_t x) {
    const std::int64_t low = ((x % (1LL << 32)) + (1LL << 32)) % (1LL << 32);
    return low >= 1LL << 31 ? low - (1LL << 32) : low;
  };
  const std::int64_t mixed = wrap(36313 * token) ^ wrap(27191 * previous), modulus = buckets - 1;
  return ((mixed % modulus) + modulus) % modulus;
}

TEST(BigramBucket, MatchesTheSlowVersionAndStaysInTheTable) {
  Fill fill(&op::kEmbedding);
  bool negative = false;
  for (const std::int32_t buckets : {2, 3, 4096, 10240})
    for (int i = 0; i < 2000; ++i) {
      const std::int32_t token = fill.below(200000), previous = fill.below(200000);
      const std::int32_t bucket = bigram_bucket(token, previous, false, buckets);
      EXPECT_EQ(bucket, slow_bigram_bucket(token, previous, buckets)) << token << " after " << previous;
      EXPECT_TRUE(bucket >= 0 && bucket < buckets - 1) << "the last row is reserved for first tokens";
      negative |= static_cast<std::int32_t>(36313u * static_cast<std::uint32_t>(token) ^
                                            27191u * static_cast<std::uint32_t>(previous)) < 0;
    }
  EXPECT_TRUE(negative) << "no product wrapped to a negative number: the random tokens are too small";
  // From Python: ((36313 * 100) ^ (27191 * 7)) % 4095; and one whose xor is negative as an int32.
  EXPECT_EQ(bigram_bucket(100, 7, false, 4096), ((36313 * 100) ^ (27191 * 7)) % 4095);
  EXPECT_EQ(bigram_bucket(100000, 3, false, 4096), slow_bigram_bucket(100000, 3, 4096));
}

TEST(BigramBucket, TheFirstTokenOfADocumentGetsTheLastRow) {
  for (const std::int32_t token : {0, 1, 5000}) EXPECT_EQ(bigram_bucket(token, 3, true, 4096), 4095);
}

TEST(FillTurns, WritesCosinesThenSinesOfEachPosition) {
  for (const int direction : {1, -1})
    for (const double base : {10000.0, 500.0}) {
      constexpr std::int64_t kPositions = 50, kColumns = 12;
      std::vector<float> table(kPositions * kColumns);
      fill_rotations(make_tensor(table.data(), kPositions, kColumns), base, direction);
      for (std::int64_t p = 0; p < kPositions; ++p)
        for (std::int64_t i = 0; i < kColumns / 2; ++i) {
          const double angle =
              static_cast<double>(p) / std::pow(base, 2.0 * static_cast<double>(i) / kColumns);
          const auto at = static_cast<std::size_t>(p * kColumns + i);
          EXPECT_NEAR(table[at], std::cos(angle), 1e-7);
          EXPECT_NEAR(table[at + kColumns / 2], direction * std::sin(angle), 1e-7);
        }
    }
}

TEST(FillTurns, DirectionMinusOneReversesPlusOne) {
  const Values forth = rotation_table(30, 16, 1), back = rotation_table(30, 16, -1);
  for (std::size_t p = 0; p < 30; ++p)
    for (std::size_t i = 0; i < 8; ++i) {
      const double x = 0.3, y = -1.7, cosine = forth.numbers[p * 16 + i],
                   sine = forth.numbers[p * 16 + 8 + i];
      const double u = x * cosine - y * sine, v = x * sine + y * cosine;
      EXPECT_NEAR(u * back.numbers[p * 16 + i] - v * back.numbers[p * 16 + 8 + i], x, 1e-6);
      EXPECT_NEAR(u * back.numbers[p * 16 + 8 + i] + v * back.numbers[p * 16 + i], y, 1e-6);
    }
}

TEST(FillTurns, WritesOnlyItsColumns) {
  std::vector<float> table(4 * 10, 7);
  fill_rotations(make_tensor(table.data(), 4, 6, 10), 10000, 1);
  for (std::size_t p = 0; p < 4; ++p)
    for (std::size_t i = 6; i < 10; ++i) EXPECT_EQ(table[p * 10 + i], 7);
}

}  // namespace
}  // namespace thimble
