#include "qa/same_logits.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "qa/tensor_stats.h"

namespace thimble {

namespace {

constexpr double kRounding = 0.05;  // of the logits' deviation

double row_difference(std::span<const float> a, std::span<const float> b) {
  double difference = 0, largest = 1;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!std::isfinite(a[i]) || !std::isfinite(b[i])) return std::numeric_limits<double>::infinity();
    difference = std::max(difference, std::abs(double{a[i]} - double{b[i]}));
    largest = std::max(largest, std::abs(double{a[i]}));
  }
  return difference / largest;
}

}  // namespace

LogitComparison compare_logits(std::span<const float> a, std::span<const float> b, std::size_t V) {
  check(a.size() == b.size() && a.size() % V == 0, "[qa] {} logits and {}", a.size(), b.size());
  LogitComparison result;
  for (std::size_t row = 0; row < a.size() / V; ++row) {
    const double difference = row_difference(a.subspan(row * V, V), b.subspan(row * V, V));
    if (difference > result.largest) result = {difference, row};
  }
  return result;
}

TokenId likeliest_id(std::span<const float> logits) {
  return static_cast<TokenId>(std::ranges::max_element(logits) - logits.begin());
}

bool is_as_likely(std::span<const float> logits, TokenId id) {
  const TensorStats stats = stats_of(logits);
  if (stats.not_finite > 0) return false;
  return stats.most - double{logits[static_cast<std::size_t>(id)]} <= kRounding * stats.deviation;
}

}  // namespace thimble
