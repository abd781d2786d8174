// Arena: one block of memory, cut up by a plan made beforehand.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "tensor/device.h"

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
  Arena(std::int64_t bytes, std::string_view what_for, std::string_view what_lowers_it)
      : Arena(cpu_runtime(), bytes, what_for, what_lowers_it) {}
  // The same on a device: its addresses are the device's, not to be read here.
  Arena(std::shared_ptr<DeviceRuntime> runtime, std::int64_t bytes, std::string_view what_for,
        std::string_view what_lowers_it);

  std::byte* at(std::int64_t offset) const { return block_.get() + offset; }
  std::int64_t bytes() const { return bytes_; }

 private:
  struct Release {
    std::shared_ptr<DeviceRuntime> runtime;
    std::int64_t bytes;
    void operator()(std::byte* block) const { runtime->release(block, bytes); }
  };
  std::unique_ptr<std::byte, Release> block_{nullptr, Release{}};
  std::int64_t bytes_ = 0;
};

// An arena of f32: weights, gradients, moments. On a device they have an image in host memory, as old as the last
// fetch(); on the CPU the two are one.
class FloatArena {
 public:
  FloatArena(std::int64_t count, std::string_view what_for, std::string_view what_lowers_it)
      : FloatArena(cpu_runtime(), count, what_for, what_lowers_it) {}
  FloatArena(std::shared_ptr<DeviceRuntime> runtime, std::int64_t count, std::string_view what_for,
             std::string_view what_lowers_it);

  std::span<float> all() const { return floats_; }  // readable and writable here
  float* on_device() const { return reinterpret_cast<float*>(arena_.at(0)); }
  void fetch();  // device to host; waits
  void send();   // host to device; waits

 private:
  std::shared_ptr<DeviceRuntime> runtime_;
  Arena arena_;
  std::vector<float> image_;  // empty on the CPU
  std::span<float> floats_;
};

}  // namespace thimble
