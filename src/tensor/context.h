// Context: what a kernel may use besides its tensors. Passed everywhere; there are no globals.
#pragma once

#include <functional>
#include <memory>
#include <typeindex>
#include <unordered_map>

#include "base/log.h"
#include "tensor/device.h"
#include "tensor/tensor.h"

namespace thimble {

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

}  // namespace thimble
