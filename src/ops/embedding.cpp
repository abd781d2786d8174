#include "ops/embedding.h"

#include "base/error.h"

namespace thimble {

void sort_rows(std::span<const std::int32_t> index, std::int64_t buckets, std::span<std::int32_t> order) {
  check(order.size() == index.size(), "[embedding] order has {} rows, index has {}", order.size(),
        index.size());
  std::vector<std::int32_t> start(static_cast<std::size_t>(buckets) + 1, 0);
  for (std::size_t n = 0; n < index.size(); ++n) {
    check(index[n] >= 0 && index[n] < buckets, "[embedding] row {} has index {}, the table has {} rows", n,
          index[n], buckets);
    ++start[static_cast<std::size_t>(index[n]) + 1];
  }
  for (std::size_t b = 1; b < start.size(); ++b) start[b] += start[b - 1];
  for (std::size_t n = 0; n < index.size(); ++n)
    order[static_cast<std::size_t>(start[static_cast<std::size_t>(index[n])]++)] =
        static_cast<std::int32_t>(n);
}

std::int32_t bigram_bucket(std::int32_t token, std::int32_t previous, bool first, std::int32_t buckets) {
  if (first) return buckets - 1;
  const std::uint32_t mixed =
      36313u * static_cast<std::uint32_t>(token) ^ 27191u * static_cast<std::uint32_t>(previous);
  const std::int64_t remainder = static_cast<std::int32_t>(mixed) % (std::int64_t{buckets} - 1);
  return static_cast<std::int32_t>(remainder < 0 ? remainder + buckets - 1 : remainder);
}

}  // namespace thimble
