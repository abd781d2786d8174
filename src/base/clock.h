// Clocks, and the median of repeated measurements.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

namespace thimble {

// Seconds of the steady clock, for measuring durations.
inline double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Seconds since 1970.
inline std::int64_t unix_time() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// The median, which a single slow repeat does not affect. For an even number of values, the upper
// of the two middle ones. `values` must not be empty.
inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

}  // namespace thimble
