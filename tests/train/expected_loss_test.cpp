#include "train/expected_loss.h"

#include <gtest/gtest.h>

namespace thimble::expected_loss_test {
namespace {

double bits(LossFacts facts) {
  return expected_loss(facts).bits_per_byte;
}

constexpr LossFacts kBook = {
    .parameters = 2e6, .bytes_read = 10e6, .different_bytes = 1e6, .difficulty = 2.4};

TEST(ExpectedLoss, RepeatedTextIsWorthLessThanNewText) {
  EXPECT_EQ(effective_bytes(5e5, 1e6), 5e5) << "less than one pass";
  EXPECT_EQ(effective_bytes(1e6, 1e6), 1e6);
  EXPECT_GT(effective_bytes(2e6, 1e6), 1.6e6) << "the second pass is worth more than half as much";
  EXPECT_LT(effective_bytes(2e6, 1e6), 2e6);
  EXPECT_LT(effective_bytes(1e9, 1e6), 1e8) << "no number of passes replaces more text";
  EXPECT_LE(effective_bytes(100e6, 1e6), effective_bytes(200e6, 1e6));
}

TEST(ExpectedLoss, FallsWithParametersTextAndSimplicity) {
  LossFacts larger = kBook, longer = kBook, more = kBook, harder = kBook;
  larger.parameters *= 2;
  longer.bytes_read *= 2;
  more.different_bytes *= 10;
  harder.difficulty *= 1.1;
  EXPECT_LT(bits(larger), bits(kBook));
  EXPECT_LT(bits(longer), bits(kBook));
  EXPECT_LT(bits(more), bits(kBook));
  EXPECT_GT(bits(harder), bits(kBook));
}

TEST(ExpectedLoss, HasARangeAndIsNeverAboveEightBits) {
  const ExpectedLoss book = expected_loss(kBook);
  EXPECT_LT(book.low, book.bits_per_byte);
  EXPECT_GT(book.high, book.bits_per_byte);
  const ExpectedLoss hopeless =
      expected_loss({.parameters = 1000, .bytes_read = 10, .different_bytes = 10, .difficulty = 8});
  EXPECT_LE(hopeless.high, 8);
}

TEST(ExpectedLoss, AnEstimatedDifficultyWidensTheRange) {
  LossFacts estimated = kBook;
  estimated.is_estimated = true;
  EXPECT_EQ(bits(estimated), bits(kBook));
  EXPECT_GT(expected_loss(estimated).high, expected_loss(kBook).high);
  EXPECT_LT(expected_loss(estimated).low, expected_loss(kBook).low);
}

TEST(ExpectedLoss, IsLessCertainFarFromTheFittedTexts) {
  const auto relative_range = [](double bytes) {
    const ExpectedLoss loss =
        expected_loss({.parameters = 2e6, .bytes_read = bytes, .different_bytes = bytes, .difficulty = 2.4});
    return (loss.high - loss.low) / loss.bits_per_byte;
  };
  EXPECT_GT(relative_range(1e5), relative_range(1e6));
  EXPECT_GT(relative_range(1e8), relative_range(1e6));
}

// Runs that the constants were not fitted to: 6 x 256 and 4 x 128, vocabulary 4,096, one H200, with
// the difficulty that the reference model has on each text. docs/lab/2026-11-scaling.md
TEST(ExpectedLoss, IsWithinFivePercentOfRunsOnOtherTexts) {
  struct Run {
    const char* name;
    LossFacts facts;
    double bits_per_byte;
  };
  const Run runs[] = {{"FineWeb-Edu, small", {1.38e6, 7.1e6, 0.903e6, 2.570}, 2.412},
                      {"FineWeb-Edu, large", {6.16e6, 14.2e6, 0.903e6, 2.570}, 2.319},
                      {"TinyStories, small", {1.38e6, 8.3e6, 0.850e6, 1.439}, 1.319},
                      {"TinyStories, large", {6.16e6, 16.7e6, 0.850e6, 1.439}, 1.180},
                      {"WikiText-2 test, small", {1.38e6, 7.1e6, 1.162e6, 2.266}, 2.025},
                      {"WikiText-2 test, large", {6.16e6, 14.3e6, 1.162e6, 2.266}, 1.985}};
  for (const Run& run : runs) EXPECT_NEAR(bits(run.facts) / run.bits_per_byte, 1, 0.05) << run.name;
}

TEST(ExpectedLoss, IsUnknownWithoutADifficulty) {
  LossFacts unknown = kBook;
  unknown.difficulty = 0;
  EXPECT_EQ(bits(unknown), 0);
}

}  // namespace
}  // namespace thimble::expected_loss_test
