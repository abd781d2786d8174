#include "base/nearest.h"

namespace thimble {
namespace {

TEST(EditDistance, CountsEditsAndSwaps) {
  EXPECT_EQ(edit_distance("", ""), 0u);
  EXPECT_EQ(edit_distance("abc", ""), 3u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
  EXPECT_EQ(edit_distance("train", "trian"), 1u);
  EXPECT_EQ(edit_distance("ca", "abc"), 3u);  // optimal string alignment: a swapped pair is not edited again
}

TEST(EditDistance, IsSymmetric) {
  for (std::string_view a : {"", "a", "ab", "ba", "temperature"})
    for (std::string_view b : {"", "b", "abc", "tempreture"})
      EXPECT_EQ(edit_distance(a, b), edit_distance(b, a));
}

TEST(Nearest, FindsTyposAndUniqueBeginnings) {
  const std::vector<std::string_view> names = {"temperature", "top-k", "top-p", "seed", "json"};
  EXPECT_EQ(nearest("tempreture", names), "temperature");
  EXPECT_EQ(nearest("jsno", names), "json");
  EXPECT_EQ(nearest("temp", names), "temperature");
  EXPECT_EQ(nearest("topk", names), "top-k");
}

TEST(Nearest, StaysSilentWhenNothingIsNear) {
  const std::vector<std::string_view> names = {"temperature", "top-kind", "top-past", "seed", "k"};
  EXPECT_EQ(nearest("device", names), "");
  EXPECT_EQ(nearest("top-", names), "");  // two begin so
  EXPECT_EQ(nearest("x", names), "");     // any letter is one edit away from "k"
  EXPECT_EQ(nearest("", names), "");
}

}  // namespace
}  // namespace thimble
