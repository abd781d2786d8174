// c += a^T b for bf16 a [R, M], b [R, N] with many rows R, and f32 c [M, N]: the gradient of a weight matrix.
//
// oneDNN 2.6 reaches 0.86 of its own peak here, because it transposes a. Nothing needs to be transposed: with rows
// in pairs (bf16_tiles.h) a word of a is a broadcast and a vector of b is a load, so both are only copied, 4096
// rows at a time, into panels that are read from first to last. Same bits for any number of threads.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/tensor.h"

namespace thimble::cpu {

// Whether this processor and these shapes gain by it.
bool outer_sum_pays(std::int64_t R, std::int64_t M, std::int64_t N);

// Memory that outer_sum packs into.
std::int64_t outer_sum_bytes(std::int64_t R, std::int64_t M, std::int64_t N);
void outer_sum(const Tensor& a, const Tensor& b, const Tensor& c, std::byte* memory);

}  // namespace thimble::cpu
