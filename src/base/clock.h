// Clocks, waiting, and the median of repeated measurements.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
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

// As changed.wait(lock, ready), which needs GLIBCXX_3.4.30: the one function of libstdc++ that
// would exclude Ubuntu 22.04 and RHEL 9. Waiting with a limit needs no more than they have.
template <class Ready>
void wait_until_ready(std::condition_variable& changed, std::unique_lock<std::mutex>& lock,
                      const Ready& ready) {
  while (!changed.wait_for(lock, std::chrono::hours(1), ready)) {
  }
}

// The median, which a single slow repeat does not affect. For an even number of values, the upper
// of the two middle ones. `values` must not be empty.
inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

}  // namespace thimble
