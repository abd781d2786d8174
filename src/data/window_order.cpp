#include "data/window_order.h"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <cstddef>
#include <utility>

#include "base/error.h"
#include "base/nearest.h"
#include "base/rng.h"

namespace thimble {

namespace {

// In the order of the enum.
constexpr std::array<std::string_view, 5> kNames = {"sequential", "shuffled", "golf", "golf-mlx", "packed"};

constexpr int kRounds = 4;  // Luby and Rackoff: four make a strong pseudo-random permutation

std::uint64_t feistel(std::uint64_t value, int half_bits, std::uint64_t seed, std::uint64_t epoch) {
  const std::uint64_t mask = (std::uint64_t{1} << half_bits) - 1;
  std::uint64_t left = value >> half_bits, right = value & mask;
  for (int round = 0; round < kRounds; ++round) {
    const std::uint64_t mixed = philox(seed, epoch * kRounds + static_cast<std::uint64_t>(round), right)[0];
    left = std::exchange(right, left ^ (mixed & mask));
  }
  return left << half_bits | right;
}

}  // namespace

std::string_view name_of(ReadOrder order) {
  return kNames[static_cast<std::size_t>(order)];
}

ReadOrder read_order_named(std::string_view name) {
  for (std::size_t i = 0; i < kNames.size(); ++i)
    if (kNames[i] == name) return static_cast<ReadOrder>(i);
  const std::string_view meant = nearest(name, kNames);
  fail(Hint{meant.empty() ? "" : fmt::format("did you mean {}?", meant)},
       "expected a reading order (sequential, shuffled, golf, golf-mlx or packed), found '{}'", name);
}

std::uint64_t permuted(std::uint64_t i, std::uint64_t count, std::uint64_t seed, std::uint64_t epoch) {
  check(i < count, "[order] element {} of {}", i, count);
  const int half_bits = (std::bit_width(count - 1) + 1) / 2;
  // At most three of four values lie outside, so a walk is short; it cannot miss, because every cycle through
  // an element inside comes back inside.
  std::uint64_t value = i;
  do value = feistel(value, half_bits, seed, epoch);
  while (value >= count);
  return value;
}

}  // namespace thimble
