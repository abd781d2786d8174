// Copies between storage types: to = from, or to += from, in f32 and rounded once.
#pragma once

#include "tensor/tensor.h"

namespace thimble::cpu {

void cast_into(const Tensor& from, const Tensor& to, bool add);

}  // namespace thimble::cpu
