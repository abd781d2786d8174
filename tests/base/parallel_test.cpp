#include "base/parallel.h"

#include <atomic>
#include <vector>

#include "base/error.h"

namespace thimble {
namespace {

TEST(ParallelFor, VisitsEveryItemOnceForAnyGrain) {
  for (std::int64_t count : {0, 1, 2, 7, 64, 1000})
    for (std::int64_t grain : {1, 3, 64, 5000}) {
      std::vector<std::atomic<int>> visits(static_cast<std::size_t>(count));
      parallel_for(count, grain, [&](std::int64_t begin, std::int64_t end) {
        EXPECT_EQ(begin % grain, 0) << "chunks start at multiples of grain";
        for (std::int64_t i = begin; i < end; ++i) ++visits[static_cast<std::size_t>(i)];
      });
      for (auto& seen : visits) EXPECT_EQ(seen, 1);
    }
}

TEST(ParallelFor, RethrowsExceptionsInTheCaller) {
  EXPECT_THROW(
      parallel_for(100, 1,
                   [](std::int64_t begin, std::int64_t) { check(begin != 42, "item {} is bad", begin); }),
      Error);
}

}  // namespace
}  // namespace thimble
