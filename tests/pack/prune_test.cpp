// Which weights pruning zeroes, and in which order.
#include "pack/prune.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "pack/small_model.h"

namespace thimble {
namespace {

TEST(PruneSmallest, ZeroesValuesBelowTheQuantile) {
  std::vector<float> values = {-5, 1, 4, -2, 3};
  EXPECT_EQ(prune_smallest(values, 0.5), 2);  // the quantile is 3: 1 and 2 are below it
  EXPECT_EQ(values, (std::vector<float>{-5, 0, 4, 0, 3}));
}

TEST(PruneSmallest, ZeroesThreePercentOfAMatrix) {
  std::vector<float> values = random_values(100'000, 0.02f, 1);
  const std::vector<float> before = values;
  EXPECT_EQ(prune_smallest(values, 0.03), 3000);
  float largest_gone = 0, smallest_left = 1;
  for (std::size_t i = 0; i < values.size(); ++i)
    if (values[i] == 0)
      largest_gone = std::max(largest_gone, std::abs(before[i]));
    else
      smallest_left = std::min(smallest_left, std::abs(values[i]));
  EXPECT_LT(largest_gone, smallest_left);
  EXPECT_EQ(prune_smallest(values, 0.03), 0) << "pruning again changes nothing";
}

TEST(PruneSmallest, HandlesEmptyInputZerosAndFractionZero) {
  std::vector<float> none, zeros = {0, 0, 0}, values = {1, 2};
  EXPECT_EQ(prune_smallest(none, 0.5), 0);
  EXPECT_EQ(prune_smallest(zeros, 0.5), 0);
  EXPECT_EQ(prune_smallest(values, 0), 0);
  EXPECT_THROW(prune_smallest(values, 1), Error);
  EXPECT_THROW(prune_smallest(values, -0.1), Error);
}

PackedTensor quantized(std::vector<std::int8_t> q, std::vector<float> scales) {
  return {.storage = Storage::int6,
          .restored = DType::f32,
          .floats = {},
          .q = std::move(q),
          .scales = std::move(scales)};
}

TEST(CheapestFirst, ZeroesOnesInOrderOfTheirScale) {
  const std::vector<PackedTensor> tensors = {
      quantized({1, 2, -1, 0, 1, 1}, {0.5f, 0.1f}),  // rows of 3
      {.storage = Storage::f32, .restored = DType::f32, .floats = {1, 1}, .q = {}, .scales = {}},
      quantized({-1, 3, 5, -1}, {0.3f}),
  };
  const CheapestFirst cheapest(tensors);
  EXPECT_EQ(cheapest.count(), 6);
  const auto after = [&](std::int64_t count) {
    std::vector<PackedTensor> copy = tensors;
    cheapest.zero(count, copy);
    EXPECT_EQ(copy[1], tensors[1]);
    return std::pair(copy[0].q, copy[2].q);
  };
  using Q = std::vector<std::int8_t>;
  EXPECT_EQ(after(0), std::pair(tensors[0].q, tensors[2].q));
  EXPECT_EQ(after(1), std::pair(Q{1, 2, -1, 0, 0, 1}, Q{-1, 3, 5, -1}));
  EXPECT_EQ(after(3), std::pair(Q{1, 2, -1, 0, 0, 0}, Q{0, 3, 5, -1}));
  EXPECT_EQ(after(4), std::pair(Q{1, 2, -1, 0, 0, 0}, Q{0, 3, 5, 0}));
  EXPECT_EQ(after(6), std::pair(Q{0, 2, 0, 0, 0, 0}, Q{0, 3, 5, 0}));
  EXPECT_EQ(after(100), after(6));
}

}  // namespace
}  // namespace thimble
