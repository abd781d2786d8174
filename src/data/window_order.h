// In which order a training set is read. Whatever the order, the state is two numbers.
#pragma once

#include <cstdint>
#include <string_view>

namespace thimble {

enum class ReadOrder {
  sequential,  // windows of T, one after the other
  shuffled,    // the same windows, in another order each epoch
  golf,      // train_gpt.py: spans of n + 1 tokens one after the other, round and round (parameter-golf 1.6)
  golf_mlx,  // train_gpt_mlx.py: the spans cut into sub-batches that take n + 1 tokens each (1.10)
  packed,    // whole documents packed into rows, rows shuffled
};

std::string_view name_of(ReadOrder order);          // "golf-mlx"
ReadOrder read_order_named(std::string_view name);  // an unknown name is an error with the nearest one

// Element i of a permutation of [0, count) that depends on (seed, epoch) alone: a Feistel network over the
// next power of four, walked until it lands inside. Nothing is stored, any element is found at once.
std::uint64_t permuted(std::uint64_t i, std::uint64_t count, std::uint64_t seed, std::uint64_t epoch);

}  // namespace thimble
