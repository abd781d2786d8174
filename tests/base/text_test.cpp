#include "base/text.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/rng.h"

namespace thimble {
namespace {

TEST(Numbers, MayEndInAUnit) {
  EXPECT_EQ(parse_integer_with_unit("500k"), 500'000);
  EXPECT_EQ(parse_integer_with_unit("500K"), 500'000);
  EXPECT_EQ(parse_integer_with_unit("2.5M"), 2'500'000);
  EXPECT_EQ(parse_integer_with_unit("-3G"), -3'000'000'000);
  EXPECT_EQ(parse_integer_with_unit("1.001k"), 1001);
  EXPECT_EQ(parse_integer_with_unit("9.223372036G"), 9'223'372'036);
  EXPECT_EQ(parse_integer_with_unit("12"), 12);
  EXPECT_EQ(parse_number_with_unit("2.5k"), 2500.0);
  EXPECT_EQ(parse_number_with_unit("0.1"), 0.1);
  EXPECT_EQ(parse_number_with_unit("0.1M"), 1e5);
}

TEST(Numbers, WithAnotherUnitOrAFractionOfOneAreRefused) {
  for (const char* wrong : {"", "k", "-k", ".k", "1.k", "5kk", "5m", "5g", "5kB", "5 k", "k5", "1e3k",
                            "1.2.3k", "1.0005k", "0.5", "10000000000G", "infk", "0x10k"})
    EXPECT_EQ(parse_integer_with_unit(wrong), std::nullopt) << wrong;
  for (const char* wrong : {"k", "5m", "infk", "nank", "1e3k", "5kB"})
    EXPECT_EQ(parse_number_with_unit(wrong), std::nullopt) << wrong;
  for (const char* wrong : {"5m", "5kB", "1.5 GB", "500MiB"}) EXPECT_TRUE(has_unknown_unit(wrong)) << wrong;
  for (const char* other : {"", "m", "many", "1e3", "5-", "0x10", "1,5"})
    EXPECT_FALSE(has_unknown_unit(other)) << other;
}

TEST(EditDistance, CountsEditsAndSwaps) {
  EXPECT_EQ(edit_distance("", ""), 0u);
  EXPECT_EQ(edit_distance("abc", ""), 3u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
  EXPECT_EQ(edit_distance("train", "trian"), 1u);
  EXPECT_EQ(edit_distance("ca", "abc"), 3u);  // swapped letters are not edited again
}

TEST(EditDistance, IsSymmetric) {
  for (std::string_view a : {"", "a", "ab", "ba", "temperature"})
    for (std::string_view b : {"", "b", "abc", "tempreture"})
      EXPECT_EQ(edit_distance(a, b), edit_distance(b, a));
}

TEST(Nearest, FindsTyposAndUniquePrefixes) {
  const std::vector<std::string_view> names = {"temperature", "top-k", "top-p", "seed", "json"};
  EXPECT_EQ(nearest("tempreture", names), "temperature");
  EXPECT_EQ(nearest("jsno", names), "json");
  EXPECT_EQ(nearest("temp", names), "temperature");
  EXPECT_EQ(nearest("topk", names), "top-k");
}

TEST(Nearest, SuggestsNothingWithoutACloseCandidate) {
  const std::vector<std::string_view> names = {"temperature", "top-kind", "top-past", "seed", "k"};
  EXPECT_EQ(nearest("device", names), "");
  EXPECT_EQ(nearest("top-", names), "");  // two candidates start with it
  EXPECT_EQ(nearest("x", names), "");     // any letter is one edit away from "k"
  EXPECT_EQ(nearest("", names), "");
}

// The shortcut by length must not change the result.
TEST(Nearest, MatchesASearchOverAllDistances) {
  Rng rng(7);
  const auto word = [&](std::uint64_t longest) {
    std::string letters;
    for (std::uint64_t i = rng.below(longest + 1); i > 0; --i)
      letters += static_cast<char>('a' + rng.below(2));
    return letters;
  };
  for (int round = 0; round < 500; ++round) {
    std::vector<std::string> names;
    for (int i = 0; i < 8; ++i) names.push_back(word(12));
    const std::string asked = word(14);
    std::string_view expected;
    std::size_t least = std::max<std::size_t>(1, asked.size() / 3) + 1;
    for (const std::string& name : names) {
      const std::size_t distance = edit_distance(asked, name);
      if (distance >= least || distance >= name.size()) continue;
      expected = name;
      least = distance;
    }
    if (expected.empty()) continue;  // the match by prefix is tested elsewhere
    EXPECT_EQ(nearest(asked, std::vector<std::string_view>(names.begin(), names.end())), expected) << asked;
  }
}

TEST(Nearest, VeryLongWordsMatchNothing) {
  const std::vector<std::string_view> names(1000, "temperature");
  EXPECT_EQ(nearest(std::string(std::size_t{1} << 24, 't'), names), "");
}

}  // namespace
}  // namespace thimble
