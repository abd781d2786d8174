// What a card allows, measured through the engine's own runtime and kernels: the ceilings of decoding and of reading
// prompts.
#pragma once

#include <cstdint>
#include <span>

#include "ops/gemm_peak.h"
#include "tensor/context.h"

namespace thimble {

// Bytes read and written per second by copies from one half of a buffer of that size into the other: one that fits the
// card's cache is copied at its speed, as a model of that size would be read. The best of some passes.
double card_bandwidth(const Context& context, std::int64_t buffer_bytes);

// Seconds of the forward products alone for N rows, each shape at its best of `repeats`.
double card_seconds_of_products(const Context& context, std::span<const ProductShape> shapes, std::int64_t N,
                                DType dtype, int repeats);

}  // namespace thimble
