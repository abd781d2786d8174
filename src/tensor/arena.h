// Arena: one block of memory, cut up by a plan made beforehand.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

namespace thimble {

// Offsets handed out by planners are multiples of this: a cache line, and a full AVX-512 vector.
inline constexpr std::int64_t kAlignment = 64;

constexpr std::int64_t align_up(std::int64_t bytes, std::int64_t alignment = kAlignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

class Arena {
 public:
  Arena() = default;
  // Zeroed memory. Memory that cannot be had is an Error that says how much, for what, and what lowers it.
  Arena(std::int64_t bytes, std::string_view what_for, std::string_view what_lowers_it);

  std::byte* at(std::int64_t offset) const { return block_.get() + offset; }
  std::int64_t bytes() const { return bytes_; }

 private:
  struct Unmap {
    std::int64_t bytes;
    void operator()(std::byte* block) const;
  };
  std::unique_ptr<std::byte, Unmap> block_{nullptr, Unmap{0}};
  std::int64_t bytes_ = 0;
};

// An arena of f32: weights, gradients, moments.
class FloatArena {
 public:
  FloatArena(std::int64_t count, std::string_view what_for, std::string_view what_lowers_it)
      : arena_(count * static_cast<std::int64_t>(sizeof(float)), what_for, what_lowers_it),
        floats_(reinterpret_cast<float*>(arena_.at(0)), static_cast<std::size_t>(count)) {}

  std::span<float> all() const { return floats_; }

 private:
  Arena arena_;
  std::span<float> floats_;
};

}  // namespace thimble
