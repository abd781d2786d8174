// Probabilities of binary decisions, learned on the way: what contexts have counted, mixed in the logistic domain (as
// the PAQ compressors do). Integers alone, so that reader and writer agree on every machine.
//
//   BitMixer<2> mixer(sizes, selectors);
//   bit = mixer.code(coder, {slot of each context}, selector, bit);
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

namespace thimble {

// 65536 / (1 + exp(-x / 256)), x in [-2047, 2047]: straight lines between 33 points.
constexpr std::int32_t squash(std::int32_t x) {
  constexpr std::array<std::int32_t, 33> kPoints = {
      22,    36,    60,    98,    162,   267,   439,   720,   1179,  1921,  3108,
      4971,  7812,  11955, 17625, 24743, 32768, 40793, 47911, 53581, 57724, 60565,
      62428, 63615, 64357, 64816, 65097, 65269, 65374, 65438, 65476, 65500, 65514};
  x = std::clamp(x, -2047, 2047) + 2048;
  const auto at = static_cast<std::size_t>(x >> 7);
  const std::int32_t share = x & 127;
  return (kPoints[at] * (128 - share) + kPoints[at + 1] * share) >> 7;
}

// The inverse, by the upper 12 bits of a probability of 16.
constexpr std::array<std::int16_t, 4096> make_stretch() {
  std::array<std::int16_t, 4096> table{};
  std::size_t next = 0;
  for (std::int32_t x = -2047; x <= 2047; ++x)
    for (const auto last = static_cast<std::size_t>(squash(x) >> 4); next <= last; ++next)
      table[next] = static_cast<std::int16_t>(x);
  for (; next < table.size(); ++next) table[next] = 2047;
  return table;
}
inline constexpr std::array<std::int16_t, 4096> kStretch = make_stretch();

// 2^16 / (n + 1.5): how far the n-th observation moves a probability.
constexpr std::array<std::int32_t, 1024> make_steps() {
  std::array<std::int32_t, 1024> table{};
  for (std::int32_t n = 0; n < 1024; ++n) table[static_cast<std::size_t>(n)] = (1 << 17) / (2 * n + 3);
  return table;
}
inline constexpr std::array<std::int32_t, 1024> kSteps = make_steps();

// How likely a 1 is in one context: quick to learn at first, slower the more it has seen.
class BitCounter {
 public:
  std::uint32_t probability() const { return state_ >> 16; }  // in 65536ths
  void update(int bit) {
    const std::uint32_t seen = state_ & 1023;
    const auto p = static_cast<std::int32_t>(state_ >> 10);  // 22 bits
    const std::int32_t target = bit ? (1 << 22) - 1 : 0;
    const auto moved = static_cast<std::int32_t>(p + ((std::int64_t{target - p} * kSteps[seen]) >> 16));
    state_ = static_cast<std::uint32_t>(moved) << 10 | std::min(seen + 1, kSlowest);
  }

 private:
  static constexpr std::uint32_t kSlowest = 1023;
  std::uint32_t state_ = 1u << 31;  // 22 bits of probability, 10 of count
};

template <std::size_t N>
class BitMixer {
 public:
  // How many slots each context has, and how many sets of weights there are to select from.
  BitMixer(const std::array<std::size_t, N>& slots, std::size_t selectors) : weights_(selectors) {
    for (std::size_t i = 0; i < N; ++i) counters_[i].resize(slots[i]);
    for (auto& weights : weights_) weights.fill(static_cast<std::int32_t>(65536 * 2 / (N + 2)));
  }

  template <class Coder>
  int code(Coder& coder, const std::array<std::size_t, N>& slot, std::size_t selector, int bit) {
    auto& weights = weights_[selector];
    std::array<std::int32_t, N> inputs;
    std::int64_t sum = 0;
    for (std::size_t i = 0; i < N; ++i) {
      inputs[i] = kStretch[counters_[i][slot[i]].probability() >> 4];
      sum += std::int64_t{weights[i]} * inputs[i];
    }
    const std::int32_t p = std::clamp(
        squash(static_cast<std::int32_t>(std::clamp<std::int64_t>(sum >> 16, -2047, 2047))), 1, 65535);
    bit = coder.code(bit, static_cast<std::uint32_t>(p));
    const std::int32_t error = ((bit ? 65535 : 0) - p) >> kSlowness;
    for (std::size_t i = 0; i < N; ++i) {
      weights[i] += (inputs[i] * error + (1 << 9)) >> 10;
      counters_[i][slot[i]].update(bit);
    }
    return bit;
  }

 private:
  static constexpr int kSlowness = 5;  // of learning whom to believe
  std::array<std::vector<BitCounter>, N> counters_;
  std::vector<std::array<std::int32_t, N>> weights_;
};

}  // namespace thimble
