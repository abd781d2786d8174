#include "data/window_order.h"

#include <bit>
#include <utility>

#include "base/error.h"
#include "base/rng.h"

namespace thimble {

namespace {

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
