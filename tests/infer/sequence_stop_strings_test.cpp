#include "infer/sequence.h"

#include <algorithm>
#include <random>

namespace thimble {
namespace {

struct Ended {
  std::string text;
  std::optional<std::string> by;
};

// Byte by byte: is there a stop string that ends here? The longest of them, then.
Ended by_the_book(const std::string& text, const std::vector<std::string>& stops) {
  for (std::size_t end = 1; end <= text.size(); ++end) {
    std::optional<std::string> by;
    for (const std::string& stop : stops)
      if (text.substr(0, end).ends_with(stop) && (!by || stop.size() > by->size())) by = stop;
    if (by) return {text.substr(0, end - by->size()), by};
  }
  return {text, {}};
}

// Could anything that begins in `shown` still become a stop string?
bool shows_too_much(const std::string& shown, const std::string& so_far,
                    const std::vector<std::string>& stops) {
  for (const std::string& stop : stops)
    for (std::size_t size = 1; size < stop.size(); ++size)
      if (so_far.ends_with(stop.substr(0, size)) && so_far.size() - size < shown.size()) return true;
  return false;
}

std::string random_text(std::mt19937& random, const std::vector<std::string>& alphabet, std::size_t most) {
  std::string text;
  for (auto left = random() % (most + 1); left > 0; --left) text += alphabet[random() % alphabet.size()];
  return text;
}

void expect_by_the_book(std::mt19937& random, const std::vector<std::string>& alphabet) {
  std::vector<std::string> stops;
  for (auto left = random() % 4; left > 0; --left)
    stops.push_back(alphabet[random() % alphabet.size()] + random_text(random, alphabet, 4));
  StopStrings filter(stops);
  std::string so_far, shown;
  for (auto pieces = random() % 12; pieces > 0 && !filter.stopped_by(); --pieces) {
    const std::string piece = random_text(random, alphabet, 5);
    so_far += piece;
    shown += filter.push(piece);
    ASSERT_TRUE(filter.stopped_by() || !shows_too_much(shown, so_far, stops)) << so_far;
    ASSERT_TRUE(so_far.starts_with(shown));
  }
  shown += filter.finish();
  const Ended expected = by_the_book(so_far, stops);
  ASSERT_EQ(shown, expected.text) << so_far;
  ASSERT_EQ(filter.stopped_by(), expected.by) << so_far;
}

// Few letters and much repetition: ends that are beginnings of others all the time.
TEST(StopStrings, AnyTextCutAnywhereEndsWhereItShould) {
  std::mt19937 random(3);
  for (int i = 0; i < 20000 && !testing::Test::HasFatalFailure(); ++i)
    expect_by_the_book(random, i % 2 == 0 ? std::vector<std::string>{"a", "b"}
                                          : std::vector<std::string>{"a", "é", "漢", "\n", "🙂"});
}

TEST(StopStrings, HoldBackOnlyWhatMayBecomeOne) {
  StopStrings filter({"\nUser:", "END"});
  EXPECT_EQ(filter.push("hello\nUs"), "hello");
  EXPECT_EQ(filter.push("ual E"), "\nUsual ");
  EXPECT_EQ(filter.push("N"), "");
  EXPECT_EQ(filter.push("D and more"), "");
  EXPECT_EQ(filter.stopped_by(), "END");
  EXPECT_EQ(filter.push("more"), "");
  EXPECT_EQ(filter.finish(), "");
}

TEST(StopStrings, WhatWasHeldBackComesAtTheEnd) {
  StopStrings filter({"abc"});
  EXPECT_EQ(filter.push("xab"), "x");
  EXPECT_EQ(filter.finish(), "ab");
}

TEST(StopStrings, WithoutAnyNothingIsHeldBack) {
  StopStrings filter({});
  EXPECT_EQ(filter.push("text"), "text");
  EXPECT_FALSE(filter.stopped_by());
}

}  // namespace
}  // namespace thimble
