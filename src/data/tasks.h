// Work on many items of uneven size, cut into tasks that are worth a thread's while.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/parallel.h"

namespace thimble {

// body(i) for [0, count) in parallel; size(i) in bytes decides how many items make a task.
template <class Size, class Body>
void parallel_items(std::size_t count, const Size& size, const Body& body) {
  constexpr std::size_t kTaskBytes = 1 << 16;
  std::vector<std::size_t> ends;
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < count; ++i) {
    bytes += size(i);
    if (bytes < kTaskBytes && i + 1 < count) continue;
    ends.push_back(i + 1);
    bytes = 0;
  }
  parallel_tasks(static_cast<std::int64_t>(ends.size()), [&](std::int64_t task) {
    const auto t = static_cast<std::size_t>(task);
    for (std::size_t i = t == 0 ? 0 : ends[t - 1]; i < ends[t]; ++i) body(i);
  });
}

}  // namespace thimble
