#include "data/read_order.h"

#include <gtest/gtest.h>

#include <set>

#include "base/error.h"

namespace thimble {
namespace {

TEST(Permuted, VisitsEveryIndexOncePerEpoch) {
  for (std::uint64_t count : {1u, 2u, 3u, 4u, 5u, 16u, 17u, 997u, 4096u}) {
    std::set<std::uint64_t> seen;
    for (std::uint64_t i = 0; i < count; ++i) seen.insert(permuted(i, count, 42, 0));
    EXPECT_EQ(seen.size(), count);
    EXPECT_EQ(*seen.rbegin(), count - 1);
  }
  EXPECT_THROW(permuted(3, 3, 1, 0), Error);
}

TEST(Permuted, SeedsAndEpochsGiveDifferentOrders) {
  int same_epoch = 0, same_seed = 0;
  for (std::uint64_t i = 0; i < 997; ++i) {
    same_epoch += permuted(i, 997, 1, 0) == permuted(i, 997, 1, 1);
    same_seed += permuted(i, 997, 1, 0) == permuted(i, 997, 2, 0);
  }
  EXPECT_LT(same_epoch, 10) << "about 1 in 997 is expected to agree by chance";
  EXPECT_LT(same_seed, 10);
}

TEST(ReadOrder, NamesRoundTrip) {
  for (const ReadOrder order : {ReadOrder::sequential, ReadOrder::shuffled, ReadOrder::shifted,
                                ReadOrder::golf, ReadOrder::golf_mlx, ReadOrder::packed})
    EXPECT_EQ(read_order_named(name_of(order)), order);
  EXPECT_EQ(name_of(ReadOrder::golf_mlx), "golf-mlx");
  EXPECT_THROW(read_order_named("golf_mlx"), Error);
}

}  // namespace
}  // namespace thimble
