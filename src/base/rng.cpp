#include "base/rng.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/parallel.h"

namespace thimble {

namespace {

// Box-Muller: two uniform words give two independent normals. Computed in double, because the
// logarithm near 1 needs the precision.
std::array<float, 2> normal_pair(std::uint32_t a, std::uint32_t b) {
  const double u = (static_cast<double>(a) + 0.5) * 0x1p-32;  // (0, 1): the logarithm is finite
  const double angle = 2 * std::numbers::pi * (static_cast<double>(b) * 0x1p-32);
  const double radius = std::sqrt(-2 * std::log(u));
  return {static_cast<float>(radius * std::cos(angle)), static_cast<float>(radius * std::sin(angle))};
}

// Sets the values to make(block) for every block of four values, in parallel. The last block may be
// shorter.
template <class Make>
void fill_blocks(std::span<float> values, Make make) {
  constexpr std::int64_t kBlocksPerTask = 4096;
  const auto blocks = static_cast<std::int64_t>((values.size() + 3) / 4);
  parallel_for(blocks, kBlocksPerTask, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t block = begin; block < end; ++block) {
      const std::array<float, 4> four = make(static_cast<std::uint64_t>(block));
      const std::size_t at = static_cast<std::size_t>(block) * 4;
      std::copy_n(four.begin(), std::min<std::size_t>(4, values.size() - at),
                  values.begin() + static_cast<std::ptrdiff_t>(at));
    }
  });
}

}  // namespace

std::uint64_t Rng::below(std::uint64_t bound) {
  // Reject draws below 2^64 mod bound, so that the number of accepted values is a multiple of
  // `bound`. Without this, the modulo would favor small results.
  const std::uint64_t incomplete = (0 - bound) % bound;
  std::uint64_t draw = next_u64();
  while (draw < incomplete) draw = next_u64();
  return draw % bound;
}

float Rng::normal() {
  const std::uint32_t first = next_u32();
  return normal_pair(first, next_u32())[0];
}

void fill_uniform(std::span<float> values, float low, float high, std::uint64_t seed, std::uint64_t stream) {
  fill_blocks(values, [=](std::uint64_t block) {
    const auto bits = philox(seed, stream, block);
    std::array<float, 4> four{};
    for (std::size_t i = 0; i < 4; ++i) four[i] = low + (high - low) * uniform_from_bits(bits[i]);
    return four;
  });
}

void fill_normal(std::span<float> values, float mean, float deviation, std::uint64_t seed,
                 std::uint64_t stream) {
  fill_blocks(values, [=](std::uint64_t block) {
    const auto bits = philox(seed, stream, block);
    const auto a = normal_pair(bits[0], bits[1]), b = normal_pair(bits[2], bits[3]);
    return std::array<float, 4>{mean + deviation * a[0], mean + deviation * a[1], mean + deviation * b[0],
                                mean + deviation * b[1]};
  });
}

}  // namespace thimble
