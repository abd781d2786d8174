#include "qa/read_bandwidth.h"

#include <algorithm>
#include <atomic>
#include <numeric>
#include <vector>

#include "base/clock.h"
#include "base/parallel.h"

namespace thimble {

namespace {

constexpr int kLeastPasses = 3;

}  // namespace

double read_bandwidth(std::int64_t buffer_bytes, double seconds, const Interrupt* interrupt) {
  const std::int64_t count = std::max<std::int64_t>(buffer_bytes / 8, 1);
  const std::int64_t piece = (count + max_threads() - 1) / max_threads();
  std::vector<std::uint64_t> buffer(static_cast<std::size_t>(count));
  std::atomic<std::uint64_t> total = 0;  // keeps the compiler from leaving the reading out
  const auto pass = [&] {
    const double start = seconds_now();
    parallel_for(count, piece, [&](std::int64_t begin, std::int64_t end) {
      total += std::accumulate(buffer.begin() + begin, buffer.begin() + end, std::uint64_t{0});
    });
    return seconds_now() - start;
  };
  pass();  // caches fill, clocks rise
  double best = pass();
  const double start = seconds_now();
  for (int i = 1; i < kLeastPasses || seconds_now() - start < seconds; ++i) {
    if (interrupt) interrupt->throw_if_asked();
    best = std::min(best, pass());
  }
  return static_cast<double>(8 * count) / best;
}

}  // namespace thimble
