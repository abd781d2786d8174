// A model's weights on their way into a safetensors file: under the params table's names, in f32, bf16 or f16.
#pragma once

#include <functional>

#include "formats/safetensors.h"
#include "model/params.h"

namespace thimble {

// The block must outlive the writer. `wanted` (may be empty: all) says which tensors. A weight that f16 cannot hold is
// an Error that names its tensor.
void add_weights(SafetensorsWriter& writer, const ParamTable& table, std::span<const float> block,
                 DType dtype, const std::function<bool(const Param&)>& wanted = {});

}  // namespace thimble
