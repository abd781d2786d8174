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
      arena_(runtime_, 2 * layers_ * slots_ * context_ * width_ * dtype_bytes(dtype), "the key-value cache",
             "use fewer slots or samples, or a shorter context") {}

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
