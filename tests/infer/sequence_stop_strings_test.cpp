#include "infer/sequence.h"

#include <algorithm>
#include <random>

namespace thimble {
namespace {

struct Ended {
  std::string text;
  std::optional<std::string> by;
};

// Reference: for each byte, the longest stop string that ends there.
Ended expected_end(const std::string& text, const std::vector<std::string>& stops) {
  for (std::size_t end = 1; end <= text.size(); ++end) {
    std::optional<std::string> by;
    for (const std::string& stop : stops)
      if (text.substr(0, end).ends_with(stop) && (!by || stop.size() > by->size())) by = stop;
    if (by) return {text.substr(0, end - by->size()), by};
  }
  return {text, {}};
}

// Whether a suffix of `so_far` that begins inside `shown` may still become a stop string.
bool shows_possible_stop(const std::string& shown, const std::string& so_far,
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

void check_random_stops(std::mt19937& random, const std::vector<std::string>& alphabet) {
  std::vector<std::string> stops;
  for (auto left = random() % 4; left > 0; --left)
    stops.push_back(alphabet[random() % alphabet.size()] + random_text(random, alphabet, 4));
  StopStrings filter(stops);
  std::string so_far, shown;
  for (auto pieces = random() % 12; pieces > 0 && !filter.stopped_by(); --pieces) {
    const std::string piece = random_text(random, alphabet, 5);
    so_far += piece;
    shown += filter.push(piece);
    ASSERT_TRUE(filter.stopped_by() || !shows_possible_stop(shown, so_far, stops)) << so_far;
    ASSERT_TRUE(so_far.starts_with(shown));
  }
  shown += filter.finish();
  const Ended expected = expected_end(so_far, stops);
  ASSERT_EQ(shown, expected.text) << so_far;
  ASSERT_EQ(filter.stopped_by(), expected.by) << so_far;
}

// Small alphabets, so that suffixes are often prefixes of stop strings.
TEST(StopStrings, RandomTextsInRandomPiecesEndAtTheFirstStop) {
  std::mt19937 random(3);
  for (int i = 0; i < 20000 && !testing::Test::HasFatalFailure(); ++i)
    check_random_stops(random, i % 2 == 0 ? std::vector<std::string>{"a", "b"}
                                          : std::vector<std::string>{"a", "é", "漢", "\n", "🙂"});
}

TEST(StopStrings, HoldBackOnlyPossiblePrefixes) {
  StopStrings filter({"\nUser:", "END"});
  EXPECT_EQ(filter.push("hello\nUs"), "hello");
  EXPECT_EQ(filter.push("ual E"), "\nUsual ");
  EXPECT_EQ(filter.push("N"), "");
  EXPECT_EQ(filter.push("D and more"), "");
  EXPECT_EQ(filter.stopped_by(), "END");
  EXPECT_EQ(filter.push("more"), "");
  EXPECT_EQ(filter.finish(), "");
}

TEST(StopStrings, FinishReturnsTheHeldBackText) {
  StopStrings filter({"abc"});
  EXPECT_EQ(filter.push("xab"), "x");
  EXPECT_EQ(filter.finish(), "ab");
}

TEST(StopStrings, NothingIsHeldBackWithoutStopStrings) {
  StopStrings filter({});
  EXPECT_EQ(filter.push("text"), "text");
  EXPECT_FALSE(filter.stopped_by());
}

}  // namespace
}  // namespace thimble
