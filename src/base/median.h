// The middle of some measurements: one slow repeat does not move it.
#pragma once

#include <algorithm>
#include <vector>

namespace thimble {

// The upper of the two for an even number; not empty.
inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

}  // namespace thimble
