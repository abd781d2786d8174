#include "tensor/tensor.h"

#include "base/error.h"
#include "tensor/arena.h"
#include "tensor/device.h"

namespace thimble {
namespace {

TEST(Tensor, ViewsPointIntoTheSameMemory) {
  std::vector<float> data(12);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<float>(i);
  const Tensor whole = make_tensor(data.data(), 3, 4);
  const Tensor part = whole.columns(1, 2).row_range(1, 2);
  EXPECT_EQ(part.row<float>(0)[0], 5);
  EXPECT_EQ(part.row<float>(1)[1], 10);
  EXPECT_FALSE(part.contiguous());
  EXPECT_EQ(part.shape().text(), "f32 [2, 2]");
  EXPECT_THROW(whole.columns(3, 2), Error);
  EXPECT_THROW(whole.row_range(2, 2), Error);
}

TEST(Tensor, OverlapMeansASharedElement) {
  std::vector<float> data(40);
  const Tensor whole = make_tensor(data.data(), 4, 10);
  const Tensor q = whole.columns(0, 4), k = whole.columns(4, 3), v = whole.columns(7, 3);
  EXPECT_TRUE(overlap(whole, k));
  EXPECT_TRUE(overlap(whole.columns(0, 5), k));
  EXPECT_FALSE(overlap(q, k));
  EXPECT_FALSE(overlap(k, q));
  EXPECT_FALSE(overlap(q, v));
  EXPECT_FALSE(overlap(v, q.row_range(1, 3))) << "interleaved columns, in either order";
  EXPECT_FALSE(overlap(whole.row_range(0, 2), whole.row_range(2, 2)));
  EXPECT_TRUE(overlap(whole.row_range(0, 3), whole.row_range(2, 2)));
  EXPECT_FALSE(overlap(whole, Tensor{}));
}

TEST(Tensor, FillZeroTouchesOnlyItsOwnColumns) {
  std::vector<float> data(12, 1.0f);
  fill_zero(make_tensor(data.data(), 3, 4).columns(1, 2));
  for (std::size_t i = 0; i < data.size(); ++i) EXPECT_EQ(data[i], i % 4 == 1 || i % 4 == 2 ? 0 : 1) << i;
}

TEST(Arena, IsZeroedAndAligned) {
  const Arena arena(1000, "the test", "nothing");
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(arena.at(0)) % kAlignment, 0u);
  for (std::int64_t i = 0; i < arena.bytes(); ++i) ASSERT_EQ(*arena.at(i), std::byte{0});
}

TEST(Arena, FailedAllocationThrowsAnErrorWithSizeAndPurpose) {
  try {
    const Arena arena(std::int64_t{1} << 50, "activations of 4,096 rows", "lower micro_batch");
    FAIL() << "a petabyte was allocated";
  } catch (const Error& error) {
    const std::string what = error.what();
    EXPECT_NE(what.find("cannot allocate 1024 TiB of memory for activations of 4,096 rows"),
              std::string::npos)
        << what;
    EXPECT_EQ(error.hint(), "lower micro_batch");
  }
}

TEST(Context, KeepsOneStatePerType) {
  const Context context;
  struct Counter {
    int value = 0;
  };
  ++context.state<Counter>().value;
  EXPECT_EQ(++context.state<Counter>().value, 2);
  EXPECT_EQ(Context().state<Counter>().value, 0);
}

}  // namespace
}  // namespace thimble
