#include "model/kv_cache.h"

#include <algorithm>
#include <utility>

#include "model/params.h"

namespace thimble {

namespace {

// Kernels read blocks of this many rows (ops/attention.h).
constexpr std::int64_t kBlock = 64;

std::vector<std::int64_t> rows_by_pass(const ModelConfig& config, bool loop_on) {
  std::vector<std::int64_t> rows;
  for (const int layer : layer_order(config, loop_on)) rows.push_back(cache_rows(config, layer));
  return rows;
}

// The first row of each pass, and the number of rows in all: keys, then values, of all slots.
std::vector<std::int64_t> offsets_of(const std::vector<std::int64_t>& rows, std::int64_t slots) {
  std::vector<std::int64_t> offsets = {0};
  for (const std::int64_t each : rows) offsets.push_back(offsets.back() + 2 * slots * each);
  return offsets;
}

}  // namespace

CacheRing cache_ring(const ModelConfig& config) {
  const std::int64_t rows = align_up(config.window + kCacheSlack, kBlock);
  for (std::int64_t layer = 0; layer < config.layers; ++layer)
    if (config.is_local(layer) && rows < config.context) return {rows, config.window};
  return {};
}

std::int64_t cache_rows(const ModelConfig& config, std::int64_t layer) {
  const CacheRing ring = cache_ring(config);
  return ring.rows > 0 && config.is_local(layer) ? ring.rows : config.context;
}

double keys_per_token(const ModelConfig& config, double positions, bool loop_on) {
  double keys = 0;
  for (const int layer : layer_order(config, loop_on))
    keys += config.is_local(layer) ? std::min(positions, static_cast<double>(config.window)) : positions;
  return keys;
}

std::int64_t cache_bytes(const ModelConfig& config, std::int64_t slots, DType dtype, bool loop_on) {
  return offsets_of(rows_by_pass(config, loop_on), slots).back() * config.kv_width() * dtype_bytes(dtype);
}

KvCache::KvCache(const ModelConfig& config, std::int64_t slots, DType dtype,
                 std::shared_ptr<DeviceRuntime> runtime, bool loop_on)
    : slots_(slots),
      width_(config.kv_width()),
      rows_(rows_by_pass(config, loop_on)),
      offsets_(offsets_of(rows_, slots)),
      dtype_(dtype),
      runtime_(std::move(runtime)),
      arena_(runtime_, offsets_.back() * width_ * dtype_bytes(dtype), "the key-value cache",
             "use fewer slots or samples, or a shorter context") {}

Tensor KvCache::matrix(std::int64_t pass, int values) const {
  const auto index = static_cast<std::size_t>(pass);
  const std::int64_t rows = slots_ * rows_[index];
  return {arena_.at((offsets_[index] + values * rows) * width_ * dtype_bytes(dtype_)),
          rows,
          width_,
          width_,
          dtype_,
          runtime_->device()};
}

void KvCache::copy_prefix(std::int64_t from, std::int64_t to, std::int64_t count) {
  for (std::int64_t pass = 0; pass < passes(); ++pass)
    for (const Tensor& cache : {keys(pass), values(pass)}) {
      const std::int64_t rows = rows_[static_cast<std::size_t>(pass)], copied = std::min(rows, count);
      runtime_->copy(cache.row_range(to * rows, copied).data, cache.row_range(from * rows, copied).data,
                     copied * width_ * dtype_bytes(dtype_));
    }
}

}  // namespace thimble
