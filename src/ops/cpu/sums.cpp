#include "ops/sums.h"

#include <vector>

#include "base/error.h"
#include "base/parallel.h"

namespace thimble::cpu {

namespace {

// term(i) summed over blocks of a fixed size, then over the blocks in order.
template <class Term>
double sum_in_blocks(std::size_t count, Term term) {
  constexpr std::int64_t kBlock = 65536;
  const auto total = static_cast<std::int64_t>(count);
  std::vector<double> partial(static_cast<std::size_t>((total + kBlock - 1) / kBlock));
  parallel_for(total, kBlock, [&](std::int64_t begin, std::int64_t end) {
    // Eight sums side by side: the compiler keeps them in vectors, and the order is the same everywhere.
    double sums[8] = {};
    std::int64_t i = begin;
    for (; i + 8 <= end; i += 8)
      for (std::int64_t lane = 0; lane < 8; ++lane) sums[lane] += term(static_cast<std::size_t>(i + lane));
    for (; i < end; ++i) sums[0] += term(static_cast<std::size_t>(i));
    for (double sum : sums) partial[static_cast<std::size_t>(begin / kBlock)] += sum;
  });
  double sum = 0;
  for (double part : partial) sum += part;
  return sum;
}

}  // namespace

double sum_of_squares(std::span<const float> values) {
  return sum_in_blocks(values.size(), [&](std::size_t i) {
    const double value = static_cast<double>(values[i]);
    return value * value;
  });
}

double weighted_sum(std::span<const float> values, std::span<const float> weights) {
  check(values.size() == weights.size(), "[weighted_sum] {} values, {} weights", values.size(),
        weights.size());
  return sum_in_blocks(values.size(), [&](std::size_t i) {
    return static_cast<double>(values[i]) * static_cast<double>(weights[i]);
  });
}

}  // namespace thimble::cpu
