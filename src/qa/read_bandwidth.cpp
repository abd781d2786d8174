#include "qa/read_bandwidth.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/clock.h"
#include "base/machine.h"
#include "base/parallel.h"
#include "tensor/arena.h"

namespace thimble {

namespace {

constexpr int kLeastPasses = 3;
constexpr std::int64_t kAtOnce = 256;  // bytes: a multiple of four of the widest vectors

using Vector16 = std::uint64_t __attribute__((vector_size(16)));
using Vector32 = std::uint64_t __attribute__((vector_size(32)));
using Vector64 = std::uint64_t __attribute__((vector_size(64)));

// Four sums of vectors: a sum of single numbers reads a cache at less than half its speed.
template <class Vector>
__attribute__((always_inline)) inline std::uint64_t sum_of_vectors(const std::byte* at,
                                                                   const std::byte* end) {
  Vector sum[4] = {};
  for (; at < end; at += sizeof(sum)) {
    const auto* vectors = reinterpret_cast<const Vector*>(at);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) sum[i] += vectors[i];
  }
  std::uint64_t total = 0;
  for (const Vector& one : sum)
    for (std::size_t lane = 0; lane < sizeof(Vector) / 8; ++lane) total += one[lane];
  return total;
}

using Sum = std::uint64_t (*)(const std::byte* at, const std::byte* end);

std::uint64_t sum_of_16(const std::byte* at, const std::byte* end) {
  return sum_of_vectors<Vector16>(at, end);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) std::uint64_t sum_of_32(const std::byte* at, const std::byte* end) {
  return sum_of_vectors<Vector32>(at, end);
}
__attribute__((target("avx512f"))) std::uint64_t sum_of_64(const std::byte* at, const std::byte* end) {
  return sum_of_vectors<Vector64>(at, end);
}

// The vectors of the kernels that the ceiling is for.
Sum widest_sum() {
  return cpu_level() >= CpuLevel::avx512 ? sum_of_64 : cpu_level() >= CpuLevel::avx2 ? sum_of_32 : sum_of_16;
}
#else
Sum widest_sum() {
  return sum_of_16;
}
#endif

}  // namespace

double read_bandwidth(std::int64_t buffer_bytes, double seconds, const Interrupt* interrupt) {
  const std::int64_t count = std::max<std::int64_t>((buffer_bytes + kAtOnce - 1) / kAtOnce, 1);
  const std::int64_t piece = (count + max_threads() - 1) / max_threads();
  const Arena buffer(count * kAtOnce, "a buffer to read", "measure a smaller model");
  std::memset(buffer.at(0), 1,
              static_cast<std::size_t>(buffer.bytes()));  // or all would be one page of zeros
  const Sum sum = widest_sum();
  std::atomic<std::uint64_t> total = 0;  // keeps the compiler from leaving the reading out
  const auto pass = [&] {
    const double start = seconds_now();
    parallel_for(count, piece, [&](std::int64_t begin, std::int64_t end) {
      total += sum(buffer.at(begin * kAtOnce), buffer.at(begin * kAtOnce) + (end - begin) * kAtOnce);
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
  return static_cast<double>(kAtOnce * count) / best;
}

}  // namespace thimble
