// Copies of rows in any order: what gather and embedding do.
#pragma once

#include "tensor/tensor.h"

namespace thimble::cpu {

// to[n] = from[row[n]], both of one dtype; row holds i32.
void gather_rows(const Tensor& from, const Tensor& row, const Tensor& to);

}  // namespace thimble::cpu
