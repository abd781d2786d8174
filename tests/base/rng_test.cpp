#include "base/rng.h"

#include <cmath>
#include <map>

#include "base/parallel.h"

namespace thimble {
namespace {

// Known answers from the authors' Random123 library (kat_vectors): philox4x32 with 10 rounds.
TEST(Philox, MatchesRandom123) {
  using Four = std::array<std::uint32_t, 4>;
  EXPECT_EQ(philox(Four{0, 0, 0, 0}, {0, 0}), (Four{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox(Four{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (Four{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox(Four{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Four{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Rng, JumpingGivesTheSameWords) {
  Rng straight(42);
  std::vector<std::uint32_t> words(1000);
  for (auto& word : words) word = straight.next_u32();
  for (std::uint64_t at : {0u, 1u, 3u, 4u, 5u, 997u}) {
    Rng jumped(42, at);
    EXPECT_EQ(jumped.next_u32(), words[at]) << at;
    EXPECT_EQ(jumped.drawn(), at + 1);
  }
}

TEST(Rng, SeedsAndStreamsDiffer) {
  EXPECT_NE(Rng(1).next_u64(), Rng(2).next_u64());
  EXPECT_NE(Rng(1, 0, 0).next_u64(), Rng(1, 0, 1).next_u64());
}

TEST(Rng, BelowIsInRangeAndUniform) {
  Rng rng(7);
  std::map<std::uint64_t, int> count;
  constexpr int kDraws = 60000, kSides = 6;
  for (int i = 0; i < kDraws; ++i) ++count[rng.below(kSides)];
  ASSERT_EQ(count.size(), std::size_t{kSides});
  double chi_square = 0;
  for (auto [side, seen] : count) chi_square += std::pow(seen - kDraws / kSides, 2) / (kDraws / kSides);
  EXPECT_LT(chi_square, 20.5) << "0.1 % quantile of chi square with 5 degrees of freedom";
  EXPECT_EQ(rng.below(1), 0u);
  EXPECT_LT(rng.below(~std::uint64_t{0}), ~std::uint64_t{0});
}

TEST(Rng, UniformAndNormalHaveTheExpectedMoments) {
  std::vector<float> values(1 << 18);
  const double n = static_cast<double>(values.size());
  const auto moment = [&](int power) {
    double sum = 0;
    for (float v : values) sum += std::pow(static_cast<double>(v), power);
    return sum / n;
  };
  fill_normal(values, 0, 1, 3, 0);
  EXPECT_NEAR(moment(1), 0, 5 / std::sqrt(n));
  EXPECT_NEAR(moment(2), 1, 5 * std::sqrt(2 / n));
  EXPECT_NEAR(moment(4), 3, 5 * std::sqrt(96 / n));
  fill_uniform(values, -1, 1, 3, 0);
  EXPECT_NEAR(moment(1), 0, 5 / std::sqrt(3 * n));
  EXPECT_NEAR(moment(2), 1.0 / 3, 5 * std::sqrt(4.0 / 45 / n));
  for (float v : values) ASSERT_TRUE(v >= -1 && v < 1);
}

TEST(Rng, FillsDoNotDependOnThreadsOrLength) {
  const int threads = max_threads();
  std::vector<float> one(100003), two(100003), shorter(50001);
  set_threads(1);
  fill_normal(one, 0, 1, 11, 5);
  set_threads(2);
  fill_normal(two, 0, 1, 11, 5);
  fill_normal(shorter, 0, 1, 11, 5);
  set_threads(threads);
  EXPECT_EQ(one, two);
  EXPECT_TRUE(std::equal(shorter.begin(), shorter.end(), one.begin()));
}

}  // namespace
}  // namespace thimble
