// The device abstraction: blocks of memory, one ordered queue of work, and recordings of that
// queue.
//
// upload, download, copy, zero and kernels are queued: the call returns immediately, and the work
// runs after everything queued before it. synchronize() waits for the whole queue, an event for the
// work queued before it was recorded. On the CPU, work is complete when the call returns.
//
//   PinnedBuffer staging(runtime, bytes);      // host memory that the device copies asynchronously
//   runtime->upload(block, staging.data(), bytes);
//   runtime->begin_capture();  ... queue a step ...  graph = runtime->end_capture();
//   graph->launch();                           // the same step again, in one call
//
// The CUDA runtime comes from a plugin (ops/cuda_plugin.h). Without it, only the CPU is available.
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

// A position in the queue.
class DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;
  virtual void record() = 0;
  virtual bool done() const = 0;  // whether everything queued before record() has run
  virtual void wait() const = 0;  // blocks until done()
  virtual double milliseconds_since(const DeviceEvent& earlier) const = 0;  // both must be done()
};

// Recorded work. Addresses and sizes are fixed at recording; values that change between launches
// must be read from memory.
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

  // Allocates zeroed memory aligned to 256 bytes; returns nullptr on failure. Use Arena, which
  // throws an Error instead.
  virtual std::byte* allocate(std::int64_t bytes) = 0;
  virtual void release(std::byte* block, std::int64_t bytes) noexcept = 0;
  virtual std::int64_t available_bytes() const = 0;  // 0: unknown
  // The most memory that was allocated at one time; 0: unknown.
  virtual std::int64_t peak_bytes() const { return 0; }

  // These calls are queued. Host memory must not change until the copy has run; only pinned memory
  // makes a copy asynchronous.
  virtual void upload(void* device, const void* host, std::int64_t bytes) = 0;
  virtual void download(void* host, const void* device, std::int64_t bytes) = 0;
  virtual void copy(void* to, const void* from, std::int64_t bytes) = 0;
  virtual void zero(void* device, std::int64_t bytes) = 0;
  virtual void synchronize() = 0;

  virtual std::byte* allocate_pinned(std::int64_t bytes) = 0;  // throws on failure
  virtual void release_pinned(std::byte* block, std::int64_t bytes) noexcept = 0;

  virtual std::unique_ptr<DeviceEvent> make_event() = 0;

  // Between these two calls work is recorded and not run. Allocation and synchronize() are not
  // allowed.
  virtual void begin_capture() = 0;
  virtual std::unique_ptr<DeviceGraph> end_capture() = 0;

  // The underlying queue (a cudaStream_t) for other libraries that queue work, such as NCCL;
  // nullptr on the CPU.
  virtual void* native_queue() const { return nullptr; }
};

// Host memory as a device. It does not support graphs.
std::shared_ptr<DeviceRuntime> cpu_runtime();

// Zeroed host memory that a device reads and writes directly.
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

// What a kernel may use besides its tensors. Passed explicitly instead of through globals.
class Context {
 public:
  explicit Context(std::shared_ptr<DeviceRuntime> runtime = cpu_runtime(), Log log = Log::nowhere())
      : runtime_(std::move(runtime)), log_(std::move(log)) {}

  Device device() const { return runtime_->device(); }
  const std::shared_ptr<DeviceRuntime>& runtime() const { return runtime_; }
  const Log& log() const { return log_; }

  // State that a backend keeps between calls (cached GEMM primitives, handles): one T per Context,
  // created on first use.
  template <class T>
  T& state() const {
    std::shared_ptr<void>& slot = states_[std::type_index(typeid(T))];
    if (!slot) slot = std::make_shared<T>();
    return *static_cast<T*>(slot.get());
  }

 private:
  std::shared_ptr<DeviceRuntime> runtime_;  // first, so that states are destroyed before it
  Log log_;
  mutable std::unordered_map<std::type_index, std::shared_ptr<void>> states_;
};

// Records the work that `work` queues. If `work` throws, the recording is ended and dropped, so
// that the queue is usable again.
std::unique_ptr<DeviceGraph> capture(DeviceRuntime& runtime, const std::function<void()>& work);

}  // namespace thimble
