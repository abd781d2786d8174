#include "pack/stored_tensors.h"

#include <algorithm>

namespace thimble {

WeightFormat stored_format(const PackedTensor& tensor) {
  if (tensor.restored == DType::bf16) return WeightFormat::bf16;
  if (tensor.restored == DType::f16 || tensor.storage == Storage::f16) return WeightFormat::f16;
  const bool scaled_rows = is_quantised(tensor.storage) && tensor.storage != Storage::int8_whole;
  return scaled_rows ? WeightFormat::int8_rows : WeightFormat::f32;
}

void store_tensor(const Param& param, const PackedTensor& tensor, const StoredWeights::Stored& place) {
  const Tensor& to = place.values;
  if (to.dtype == DType::i8) {
    std::ranges::copy(tensor.q, to.row<std::int8_t>(0));
    std::ranges::copy(tensor.scales, place.scales.row<float>(0));
    return;
  }
  std::vector<float> values(static_cast<std::size_t>(param.count()));
  unpack_tensor(param, tensor, values);
  store_floats(values, to);
}

}  // namespace thimble
