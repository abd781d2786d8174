#include "pack/prune.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace thimble {

namespace {

bool is_one(std::int8_t q) {
  return q == 1 || q == -1;
}

std::size_t row_width(const PackedTensor& tensor) {
  return tensor.q.size() / tensor.scales.size();
}

}  // namespace

std::int64_t prune_smallest(std::span<float> values, double fraction) {
  check(fraction >= 0 && fraction < 1, "[prune] the fraction must be in [0, 1), found {}", fraction);
  const float threshold = quantile_of_magnitudes(values, fraction);
  std::int64_t pruned = 0;
  for (float& value : values) {
    if (!(std::abs(value) < threshold)) continue;
    pruned += value != 0;
    value = 0;
  }
  return pruned;
}

CheapestFirst::CheapestFirst(std::span<const PackedTensor> tensors) {
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const PackedTensor& tensor = tensors[t];
    if (!is_quantised(tensor.storage) || tensor.q.empty()) continue;
    const std::size_t width = row_width(tensor);
    for (std::size_t row = 0; row < tensor.scales.size(); ++row) {
      const auto q = std::span(tensor.q).subspan(row * width, width);
      const auto ones = static_cast<std::int64_t>(std::ranges::count_if(q, is_one));
      if (ones > 0) rows_.push_back({tensor.scales[row], t, row, ones});
      count_ += ones;
    }
  }
  std::ranges::stable_sort(rows_, {}, &Row::scale);
}

void CheapestFirst::zero(std::int64_t count, std::span<PackedTensor> tensors) const {
  for (const Row& row : rows_) {
    if (count <= 0) return;
    PackedTensor& tensor = tensors[row.tensor];
    const std::size_t width = row_width(tensor);
    for (std::int8_t& q : std::span(tensor.q).subspan(row.row * width, width))
      if (is_one(q) && count > 0) {
        q = 0;
        --count;
      }
  }
}

}  // namespace thimble
