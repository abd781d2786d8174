// The list of ops, and the backends that run them.
#pragma once

#include <span>

#include "graph/op.h"

namespace thimble {

// In a fixed order, because tests seed their data by index.
std::span<const OpDefinition* const> all_ops();

const Backend& reference_backend();  // the formulas, in f32, f64 and c128
const Backend& cpu_backend();        // Highway for rows; oneDNN and our own kernels for matrices

// cpu_backend(), or the backend of the CUDA plugin, which is opened on first use
// (ops/cuda_plugin.h).
const Backend& backend_of(Device device);

}  // namespace thimble
