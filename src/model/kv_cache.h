// What slots remember: keys and values of every layer (of a looped one, those of each pass), [slots * context, K D] each,
// contiguous per slot, in the memory of the device that decodes.
#pragma once

#include <cstdint>
#include <memory>

#include "model/config.h"
#include "tensor/arena.h"
#include "tensor/tensor.h"

namespace thimble {

class KvCache {
 public:
  KvCache(const ModelConfig& config, std::int64_t slots, DType dtype = DType::f32,
          std::shared_ptr<DeviceRuntime> runtime = cpu_runtime());

  std::int64_t slots() const { return slots_; }
  Tensor keys(std::int64_t layer) const { return matrix(2 * layer); }
  Tensor values(std::int64_t layer) const { return matrix(2 * layer + 1); }
  const std::byte* memory() const { return arena_.at(0); }  // which cache this is
  // The first `count` positions of one slot into another: a shared prefix. On a device: queued.
  void copy_prefix(std::int64_t from, std::int64_t to, std::int64_t count);

 private:
  Tensor matrix(std::int64_t index) const;

  std::int64_t slots_, context_, width_, layers_;
  DType dtype_;
  std::shared_ptr<DeviceRuntime> runtime_;
  Arena arena_;
};

}  // namespace thimble
