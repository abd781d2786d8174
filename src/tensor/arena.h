// Arena: one block of memory, divided according to a plan computed beforehand.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "tensor/device.h"

namespace thimble {

// Planned offsets are multiples of this: a cache line, and one AVX-512 vector.
inline constexpr std::int64_t kAlignment = 64;

constexpr std::int64_t align_up(std::int64_t bytes, std::int64_t alignment = kAlignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

class Arena {
 public:
  Arena() = default;
  // Zeroed memory. If the allocation fails, throws an Error with the size and the purpose
  // ("training"). Its hint is `remedy`, which tells the user what to lower.
  Arena(std::int64_t bytes, std::string_view purpose, std::string_view remedy)
      : Arena(cpu_runtime(), bytes, purpose, remedy) {}
  // The same on a device. The addresses are device addresses and must not be dereferenced on the
  // host.
  Arena(std::shared_ptr<DeviceRuntime> runtime, std::int64_t bytes, std::string_view purpose,
        std::string_view remedy);

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

// An arena of f32 values: weights, gradients, moments. For a device it also keeps a copy in host
// memory, which is as recent as the last fetch(). On the CPU there is only one copy.
class FloatArena {
 public:
  FloatArena(std::int64_t count, std::string_view purpose, std::string_view remedy)
      : FloatArena(cpu_runtime(), count, purpose, remedy) {}
  FloatArena(std::shared_ptr<DeviceRuntime> runtime, std::int64_t count, std::string_view purpose,
             std::string_view remedy);

  std::span<float> all() const { return floats_; }  // host memory
  float* on_device() const { return reinterpret_cast<float*>(arena_.at(0)); }
  void fetch();  // copies device to host and waits
  void send();   // copies host to device and waits

 private:
  std::shared_ptr<DeviceRuntime> runtime_;
  Arena arena_;
  std::vector<float> image_;  // empty on the CPU
  std::span<float> floats_;
};

}  // namespace thimble
