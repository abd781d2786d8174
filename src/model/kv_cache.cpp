#include "model/kv_cache.h"

#include <utility>

namespace thimble {

KvCache::KvCache(const ModelConfig& config, std::int64_t slots, DType dtype,
                 std::shared_ptr<DeviceRuntime> runtime, bool loop_on)
    : slots_(slots),
      context_(config.context),
      width_(config.kv_width()),
      layers_(config.passes(loop_on)),
      dtype_(dtype),
      runtime_(std::move(runtime)),
      arena_(runtime_, bytes(config, slots, dtype, loop_on), "the key-value cache",
             "use fewer slots or samples, or a shorter context") {}

std::int64_t KvCache::bytes(const ModelConfig& config, std::int64_t slots, DType dtype, bool loop_on) {
  return 2 * config.passes(loop_on) * slots * config.context * config.kv_width() * dtype_bytes(dtype);
}

Tensor KvCache::matrix(std::int64_t index) const {
  const std::int64_t rows = slots_ * context_;
  return {arena_.at(index * rows * width_ * dtype_bytes(dtype_)),
          rows,
          width_,
          width_,
          dtype_,
          runtime_->device()};
}

void KvCache::copy_prefix(std::int64_t from, std::int64_t to, std::int64_t count) {
  for (std::int64_t index = 0; index < 2 * layers_; ++index) {
    const Tensor cache = matrix(index);
    runtime_->copy(cache.row_range(to * context_, count).data, cache.row_range(from * context_, count).data,
                   count * width_ * dtype_bytes(dtype_));
  }
}

}  // namespace thimble
