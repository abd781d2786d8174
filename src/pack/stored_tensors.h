// Packed tensors as inference keeps them (model/stored_weights.h): integers stay integers.
//
// I8, I6 and I5 take a byte each, which is what kernels multiply. What the source rounded to bf16 or f16 is kept in that:
// the same values.
#pragma once

#include "model/stored_weights.h"
#include "pack/packed_tensor.h"

namespace thimble {

WeightFormat stored_format(const PackedTensor& tensor);

// Into its place, whatever format that has come to have.
void store_tensor(const Param& param, const PackedTensor& tensor, const StoredWeights::Stored& place);

}  // namespace thimble
