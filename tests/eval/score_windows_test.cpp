#include "eval/score.h"

#include <gtest/gtest.h>

#include <vector>

namespace thimble {
namespace {

TEST(Windows, EveryTokenIsScoredOnceWithTheLongestContext) {
  for (std::uint64_t T : {1, 2, 5, 8, 64})
    for (std::uint64_t stride = 1; stride <= T; stride += T > 8 ? 7 : 1)
      for (std::uint64_t length = 1; length < 3 * T + 2; ++length) {
        SCOPED_TRACE(testing::Message() << "length " << length << ", T " << T << ", stride " << stride);
        const SlidingWindows windows(length, T, stride);
        std::vector<int> scored(length);
        for (std::uint64_t i = 0; i < windows.count(); ++i) {
          const SlidingWindows::Span span = windows.at(i);
          ASSERT_LE(span.count, T);
          ASSERT_LT(span.scored_from, span.count) << "window " << i << " scores nothing";
          ASSERT_LE(span.begin + span.count, length);
          for (std::uint64_t k = span.scored_from; k < span.count; ++k) {
            const std::uint64_t token = span.begin + k;
            ++scored[token];
            // No window that begins earlier, at a multiple of the stride, reads this far.
            if (span.begin > 0) {
              ASSERT_GE(token, span.begin - stride + T);
            }
          }
        }
        ASSERT_EQ(scored, std::vector<int>(length, 1));
      }
}

TEST(Windows, WithStrideTTheyDoNotOverlap) {
  const SlidingWindows windows(10, 4, 4);
  ASSERT_EQ(windows.count(), 3u);
  EXPECT_EQ(windows.at(1).begin, 4u);
  EXPECT_EQ(windows.at(1).scored_from, 0u);
  EXPECT_EQ(windows.at(2).count, 2u);
}

}  // namespace
}  // namespace thimble
