// A device as the engine sees it: blocks of memory, one queue of work in order, and recordings of that queue.
//
// Work is queued and runs later: upload, download, copy, zero and kernels come back at once, and see what was queued
// before them. synchronise() waits for all of it; an event for what was queued before it. On the CPU everything has
// happened when a call returns.
//
//   PinnedBuffer staging(runtime, bytes);      // host memory that a device copies from without waiting
//   runtime->upload(block, staging.data(), bytes);
//   runtime->begin_capture();  ... queue a step ...  graph = runtime->end_capture();
//   graph->launch();                           // the same step again, in one call
//
// The CUDA runtime comes from the plugin (ops/cuda_plugin.h); without it there is the CPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <typeindex>
#include <unordered_map>

#include "base/log.h"
#include "tensor/tensor.h"

namespace thimble {

struct DeviceFacts {
  std::string name;                          // "NVIDIA H200"
  std::string versions;                      // "driver 13.0, runtime 13.0, cuBLASLt 13.1.0"
  int compute_major = 0, compute_minor = 0;  // CUDA's compute capability
  int multiprocessors = 0;
  std::int64_t memory_bytes = 0;
  std::int64_t available_bytes = 0;  // 0: unknown
  std::int64_t l2_bytes = 0;
  bool bf16 = false;  // multiplies bf16 in hardware
};

// A place in the queue.
class DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;
  virtual void record() = 0;
  virtual bool done() const = 0;  // everything queued before record() has run
  virtual void wait() const = 0;  // until it is done
  virtual double milliseconds_since(const DeviceEvent& earlier) const = 0;  // both done
};

// Recorded work. Addresses and sizes are those of the recording; what changes from launch to launch lies in memory.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
  virtual void launch() = 0;
  virtual std::int64_t nodes() const = 0;
};

class DeviceRuntime {
 public:
  virtual ~DeviceRuntime() = default;
  virtual Device device() const = 0;
  virtual DeviceFacts facts() const = 0;

  // A block of zeros, aligned to 256 bytes; nullptr if it cannot be had. For Arena, which says so in a sentence.
  virtual std::byte* allocate(std::int64_t bytes) = 0;
  virtual void release(std::byte* block, std::int64_t bytes) noexcept = 0;
  virtual std::int64_t available_bytes() const = 0;  // 0: unknown

  // Queued. Host memory must stay as it is until the copy has run; pinned memory makes it asynchronous.
  virtual void upload(void* device, const void* host, std::int64_t bytes) = 0;
  virtual void download(void* host, const void* device, std::int64_t bytes) = 0;
  virtual void copy(void* to, const void* from, std::int64_t bytes) = 0;
  virtual void zero(void* device, std::int64_t bytes) = 0;
  virtual void synchronise() = 0;

  virtual std::byte* allocate_pinned(std::int64_t bytes) = 0;  // throws
  virtual void release_pinned(std::byte* block, std::int64_t bytes) noexcept = 0;

  virtual std::unique_ptr<DeviceEvent> make_event() = 0;

  // Between the two, work is recorded instead of run: no allocation, no synchronise().
  virtual void begin_capture() = 0;
  virtual std::unique_ptr<DeviceGraph> end_capture() = 0;

  // The queue as its own library knows it (a cudaStream_t), for another library that queues there: NCCL. nullptr: none.
  virtual void* native_queue() const { return nullptr; }
};

// Host memory as a device; it has no graphs.
std::shared_ptr<DeviceRuntime> cpu_runtime();

// Host memory that a device reads and writes on its own. Zeroed.
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  PinnedBuffer(std::shared_ptr<DeviceRuntime> runtime, std::int64_t bytes)
      : block_(runtime->allocate_pinned(bytes), Release{runtime, bytes}), bytes_(bytes) {}

  std::byte* data() const { return block_.get(); }
  std::int64_t bytes() const { return bytes_; }
  template <class T>
  std::span<T> as() const {
    return {reinterpret_cast<T*>(block_.get()), static_cast<std::size_t>(bytes_) / sizeof(T)};
  }

 private:
  struct Release {
    std::shared_ptr<DeviceRuntime> runtime;
    std::int64_t bytes;
    void operator()(std::byte* block) const { runtime->release_pinned(block, bytes); }
  };
  std::unique_ptr<std::byte, Release> block_{nullptr, Release{}};
  std::int64_t bytes_ = 0;
};

// Context: what a kernel may use besides its tensors. Passed everywhere; there are no globals.

class Context {
 public:
  explicit Context(std::shared_ptr<DeviceRuntime> runtime = cpu_runtime(), Log log = Log::nowhere())
      : runtime_(std::move(runtime)), log_(std::move(log)) {}

  Device device() const { return runtime_->device(); }
  const std::shared_ptr<DeviceRuntime>& runtime() const { return runtime_; }
  const Log& log() const { return log_; }

  // What a backend keeps between calls (cached GEMM primitives, handles): one T per Context, made on first
  // use.
  template <class T>
  T& state() const {
    std::shared_ptr<void>& slot = states_[std::type_index(typeid(T))];
    if (!slot) slot = std::make_shared<T>();
    return *static_cast<T*>(slot.get());
  }

 private:
  std::shared_ptr<DeviceRuntime> runtime_;  // first in, last out: states hold what it made
  Log log_;
  mutable std::unordered_map<std::type_index, std::shared_ptr<void>> states_;
};

// What `work` queues, recorded. Where it throws, the recording is ended and dropped, so that the queue runs again.
std::unique_ptr<DeviceGraph> capture(DeviceRuntime& runtime, const std::function<void()>& work);

}  // namespace thimble
