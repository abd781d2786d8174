// Counter-based random numbers: Philox4x32-10 (Salmon et al., SC'11, "Parallel random numbers: as
// easy as 1, 2, 3").
//
// A draw is a pure function of (seed, stream, index). Tensors are therefore filled in parallel with
// the same bits for any number of threads, dropout needs no stored mask, and the state of a
// generator is two numbers.
#pragma once
#include <array>
#include <cstdint>
#include <span>

namespace thimble {

// The block function: 128 bits of counter and 64 bits of key give 128 random bits.
constexpr std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter,
                                              std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53u} * counter[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(b),
               static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(a)};
    key = {key[0] + 0x9E3779B9u, key[1] + 0xBB67AE85u};
  }
  return counter;
}

// Block `index` of stream `stream` under `seed`.
constexpr std::array<std::uint32_t, 4> philox(std::uint64_t seed, std::uint64_t stream, std::uint64_t index) {
  return philox({static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32),
                 static_cast<std::uint32_t>(stream), static_cast<std::uint32_t>(stream >> 32)},
                {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
}

// 24 random bits as a float in [0, 1).
constexpr float uniform_from_bits(std::uint32_t bits) {
  return static_cast<float>(bits >> 8) * 0x1p-24f;
}

// A sequential generator. Its state is {seed, drawn}; setting `drawn` jumps to any position in
// constant time.
class Rng {
 public:
  explicit Rng(std::uint64_t seed, std::uint64_t drawn = 0, std::uint64_t stream = 0)
      : seed_(seed), stream_(stream), drawn_(drawn) {}

  std::uint64_t seed() const { return seed_; }
  std::uint64_t drawn() const { return drawn_; }  // number of 32-bit words taken
  void jump_to(std::uint64_t drawn) { drawn_ = drawn; }

  std::uint32_t next_u32() {
    const auto block = philox(seed_, stream_, drawn_ / 4);
    return block[drawn_++ % 4];
  }
  std::uint64_t next_u64() {
    const std::uint64_t low = next_u32();
    return std::uint64_t{next_u32()} << 32 | low;
  }
  float uniform() { return uniform_from_bits(next_u32()); }                            // [0, 1)
  double uniform_double() { return static_cast<double>(next_u64() >> 11) * 0x1p-53; }  // [0, 1)
  std::uint64_t below(std::uint64_t bound);  // [0, bound), without bias; bound > 0
  float normal();                            // mean 0, standard deviation 1

 private:
  std::uint64_t seed_, stream_, drawn_;
};

// values[i] depends only on (seed, stream, i).
void fill_uniform(std::span<float> values, float low, float high, std::uint64_t seed, std::uint64_t stream);
void fill_normal(std::span<float> values, float mean, float deviation, std::uint64_t seed,
                 std::uint64_t stream);

}  // namespace thimble
