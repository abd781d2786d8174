#include "tensor/device.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/error.h"
#include "base/machine.h"

namespace thimble {

namespace {

class CpuEvent final : public DeviceEvent {
 public:
  void record() override { when_ = std::chrono::steady_clock::now(); }
  bool done() const override { return true; }
  void wait() const override {}
  double milliseconds_since(const DeviceEvent& earlier) const override {
    const auto& before = dynamic_cast<const CpuEvent&>(earlier);
    return std::chrono::duration<double, std::milli>(when_ - before.when_).count();
  }

 private:
  std::chrono::steady_clock::time_point when_ = {};
};

class CpuRuntime final : public DeviceRuntime {
 public:
  Device device() const override { return Device::cpu; }

  DeviceFacts facts() const override {
    const Machine machine = probe_machine();
    DeviceFacts facts;
    facts.name = machine.cpu_model;
    facts.memory_bytes = machine.memory_bytes;
    facts.available_bytes = available_bytes();
    facts.bf16 = machine.features.avx512_bf16 || machine.features.amx_bf16;
    return facts;
  }

  std::byte* allocate(std::int64_t bytes) override {
    void* block = mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (block == MAP_FAILED) return nullptr;
    // Only a hint. Huge pages mean fewer TLB misses.
    madvise(block, static_cast<std::size_t>(bytes), MADV_HUGEPAGE);
    return static_cast<std::byte*>(block);
  }
  void release(std::byte* block, std::int64_t bytes) noexcept override {
    munmap(block, static_cast<std::size_t>(bytes));
  }

  std::int64_t available_bytes() const override {
    return probe_machine().available_bytes;
  }

  void upload(void* device, const void* host, std::int64_t bytes) override { copy(device, host, bytes); }
  void download(void* host, const void* device, std::int64_t bytes) override { copy(host, device, bytes); }
  void copy(void* to, const void* from, std::int64_t bytes) override {
    if (bytes > 0) std::memmove(to, from, static_cast<std::size_t>(bytes));
  }
  void zero(void* device, std::int64_t bytes) override {
    if (bytes > 0) std::memset(device, 0, static_cast<std::size_t>(bytes));
  }
  void synchronize() override {}

  std::byte* allocate_pinned(std::int64_t bytes) override {
    std::byte* block = bytes > 0 ? allocate(bytes) : nullptr;
    check(block != nullptr || bytes == 0, "[device] cannot allocate {} bytes of staging memory", bytes);
    return block;
  }
  void release_pinned(std::byte* block, std::int64_t bytes) noexcept override { release(block, bytes); }

  std::unique_ptr<DeviceEvent> make_event() override { return std::make_unique<CpuEvent>(); }

  void begin_capture() override {
    fail("[device] the CPU does not support graph capture: run the program directly");
  }
  std::unique_ptr<DeviceGraph> end_capture() override {
    fail("[device] the CPU does not support graph capture: run the program directly");
  }
};

}  // namespace

std::shared_ptr<DeviceRuntime> cpu_runtime() {
  static const auto runtime = std::make_shared<CpuRuntime>();  // stateless: one instance serves all
  return runtime;
}

std::unique_ptr<DeviceGraph> capture(DeviceRuntime& runtime, const std::function<void()>& work) {
  runtime.begin_capture();
  try {
    work();
  } catch (...) {
    try {
      runtime.end_capture();
    } catch (const Error&) {
      // An incomplete recording cannot become a graph. The first error is the one to report.
    }
    throw;
  }
  return runtime.end_capture();
}

}  // namespace thimble
