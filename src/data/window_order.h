// In which order windows are read: one after the other, or shuffled anew each epoch. Either way the state is
// two numbers.
#pragma once

#include <cstdint>

namespace thimble {

enum class ReadOrder { sequential, shuffled };

// Element i of a permutation of [0, count) that depends on (seed, epoch) alone: a Feistel network over the
// next power of four, walked until it lands inside. Nothing is stored, any element is found at once.
std::uint64_t permuted(std::uint64_t i, std::uint64_t count, std::uint64_t seed, std::uint64_t epoch);

}  // namespace thimble
