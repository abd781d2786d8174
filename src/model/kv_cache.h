// KV cache: the keys and values of the tokens of each slot.
//
// Every layer has one matrix of keys and one of values, [slots * rows, K D]; a layer in a loop has
// one pair per pass. The rows of a slot are contiguous: one for each position of the context. In
// layers with a window they are a ring of the last positions, if that is shorter. The memory is on
// the device that decodes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "config/config.h"
#include "tensor/arena.h"
#include "tensor/device.h"
#include "tensor/tensor.h"

namespace thimble {

// A ring is at least this much longer than the window. A call has at most so many rows of a slot,
// and a sequence can return to a prefix that is shorter by as many tokens.
inline constexpr std::int64_t kCacheSlack = 1024;

// The rings of a model's layers with a window, which are all of one size. rows 0: it has none.
struct CacheRing {
  std::int64_t rows = 0, window = 0;
};
CacheRing cache_ring(const ModelConfig& config);

std::int64_t cache_rows(const ModelConfig& config, std::int64_t layer);  // of a slot in a layer
// Keys that a token attends to in all layers, if `positions` are before it.
double keys_per_token(const ModelConfig& config, double positions, bool loop_on);
std::int64_t cache_bytes(const ModelConfig& config, std::int64_t slots, DType dtype, bool loop_on = true);

class KvCache {
 public:
  KvCache(const ModelConfig& config, std::int64_t slots, DType dtype = DType::f32,
          std::shared_ptr<DeviceRuntime> runtime = cpu_runtime(), bool loop_on = true);

  std::int64_t slots() const { return slots_; }
  std::int64_t passes() const { return static_cast<std::int64_t>(rows_.size()); }
  Tensor keys(std::int64_t pass) const { return matrix(pass, 0); }
  Tensor values(std::int64_t pass) const { return matrix(pass, 1); }
  const std::byte* memory() const { return arena_.at(0); }  // identifies the cache

  // Copies the first `count` positions of one slot to another, as far as the slot has them. On a
  // GPU the copy is queued.
  void copy_prefix(std::int64_t from, std::int64_t to, std::int64_t count);

 private:
  Tensor matrix(std::int64_t pass, int values) const;

  std::int64_t slots_, width_;
  std::vector<std::int64_t> rows_, offsets_;  // of a pass: rows of a slot; its first row in the memory
  DType dtype_;
  std::shared_ptr<DeviceRuntime> runtime_;
  Arena arena_;
};

}  // namespace thimble
