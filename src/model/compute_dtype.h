// What a model computes in, settled: `auto` becomes a dtype, and what this machine should not do is refused.
#pragma once

#include <string>

#include "base/machine.h"
#include "model/config.h"
#include "tensor/dtype.h"
#include "tensor/tensor.h"

namespace thimble {

// automatic: bf16 where the device multiplies it (AVX-512 BF16, AMX, CUDA), else f32. Asking a processor without it
// for bf16 is an error: every product would be slower than f32. f16 is computed in on CUDA alone, by request; elsewhere
// it is for storage.
DType compute_dtype(ComputeDType wanted, Device device);

// What a run had to do without, in words: bf16, on a processor that does not multiply it. Empty: nothing.
std::string dtype_fallback(ComputeDType wanted, Device device, const CpuFeatures& features);

}  // namespace thimble
