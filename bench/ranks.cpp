// The cost of a sum over ranks, and a linear model of it, with n in bytes:
//   T(n) = 2 (R - 1) alpha + 2 (R - 1) / R n beta
//
//   mpirun -n 2 build/bin/ranks_bench            a table, alpha, beta, and the model's errors
//   bench/two_hosts.sh 1gbit 1ms -n 2 build/bin/ranks_bench
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/parallel.h"
#include "dist/communicator.h"
#include "dist/plugins.h"

namespace thimble {
namespace {

struct Point {
  double bytes, seconds;
};

// Seconds per sum in the fastest of several batches: other load only adds time.
double seconds_of_sum(Communicator& ranks, std::size_t floats, int batch) {
  constexpr int kRows = 9;
  std::vector<float> values(floats);
  double fastest = 1e9;
  for (int i = 0; i < kRows; ++i) {
    ranks.barrier("bench");
    const double started = seconds_now();
    for (int k = 0; k < batch; ++k) ranks.start_sum({values}, "bench")->wait();
    fastest = std::min(fastest, (seconds_now() - started) / batch);
  }
  return fastest;
}

// The line a + b x with the smallest squared relative errors.
Point fit(const std::vector<Point>& points) {
  double w = 0, x = 0, y = 0, xx = 0, xy = 0;
  for (const Point& p : points) {
    const double weight = 1 / (p.seconds * p.seconds);
    w += weight;
    x += weight * p.bytes;
    y += weight * p.seconds;
    xx += weight * p.bytes * p.bytes;
    xy += weight * p.bytes * p.seconds;
  }
  const double slope = (w * xy - x * y) / (w * xx - x * x);
  return {(y - slope * x) / w, slope};
}

int run() {
  set_threads(1);
  const auto ranks = join_ranks(read_launch(), 120);
  if (ranks->size() == 1) {
    std::puts("a sum needs at least two ranks: start this program with mpirun -n 2");
    return 2;
  }
  std::vector<Point> points;
  constexpr double kLongest = 0.2;  // seconds; larger sums are skipped on slow connections
  for (std::size_t floats = 256; floats <= (std::size_t{1} << 22); floats *= 4) {
    double seconds = seconds_of_sum(*ranks, floats, floats > (1 << 18) ? 3 : 20);
    ranks->broadcast(std::as_writable_bytes(std::span(&seconds, 1)), 0, "bench");
    points.push_back({static_cast<double>(floats * sizeof(float)), seconds});
    if (seconds > kLongest) break;
  }
  if (!ranks->first()) return 0;
  const double R = ranks->size();
  const Point line = fit(points);
  const double alpha = line.bytes / (2 * (R - 1)), beta = line.seconds * R / (2 * (R - 1));
  fmt::print("{:>12} {:>12} {:>12} {:>8}\n", "bytes", "measured us", "model us", "error");
  double worst = 0, total = 0;
  for (const Point& p : points) {
    const double model = line.bytes + line.seconds * p.bytes, error = model / p.seconds - 1;
    worst = std::max(worst, std::abs(error));
    total += std::abs(error);
    fmt::print("{:>12.0f} {:>12.1f} {:>12.1f} {:>+7.0f}%\n", p.bytes, 1e6 * p.seconds, 1e6 * model,
               100 * error);
  }
  fmt::print("ranks {}, alpha {:.1f} us, 1/beta {:.3f} GB/s, error mean {:.0f} %, worst {:.0f} %\n",
             ranks->size(), 1e6 * alpha, 1e-9 / beta, 100 * total / static_cast<double>(points.size()),
             100 * worst);
  return 0;
}

}  // namespace
}  // namespace thimble

int main() {
  try {
    return thimble::run();
  } catch (const thimble::Error& error) {
    fmt::print(stderr, "{}\n", thimble::describe(error));
    return 1;
  }
}
