// KV cache: the keys and values of the tokens of each slot.
//
// Every layer has one matrix of keys and one of values, [slots * context, K D]; a layer in a loop
// has one pair per pass. The rows of a slot are contiguous. The memory is on the device that
// decodes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "config/config.h"
#include "tensor/arena.h"
#include "tensor/device.h"
#include "tensor/tensor.h"

namespace thimble {

class KvCache {
 public:
  KvCache(const ModelConfig& config, std::int64_t slots, DType dtype = DType::f32,
          std::shared_ptr<DeviceRuntime> runtime = cpu_runtime(), bool loop_on = true);

  static std::int64_t bytes(const ModelConfig& config, std::int64_t slots, DType dtype, bool loop_on = true);

  std::int64_t slots() const { return slots_; }
  Tensor keys(std::int64_t layer) const { return matrix(2 * layer); }
  Tensor values(std::int64_t layer) const { return matrix(2 * layer + 1); }
  const std::byte* memory() const { return arena_.at(0); }  // identifies the cache

  // Copies the first `count` positions of one slot to another. On a GPU the copy is queued.
  void copy_prefix(std::int64_t from, std::int64_t to, std::int64_t count);

 private:
  Tensor matrix(std::int64_t index) const;

  std::int64_t slots_, context_, width_, layers_;
  DType dtype_;
  std::shared_ptr<DeviceRuntime> runtime_;
  Arena arena_;
};

}  // namespace thimble
