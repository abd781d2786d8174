// What a model computes in: `auto` becomes a dtype, and what a device has no products of is refused.
#pragma once

#include <string>

#include "base/machine.h"
#include "model/config.h"
#include "tensor/dtype.h"
#include "tensor/tensor.h"

namespace thimble {

// automatic: bf16 where the device multiplies it (AVX-512 BF16, AMX, CUDA), else f32, which is faster there. bf16 works on
// every device. f16 is computed in on CUDA only, by request; elsewhere it is for storage.
DType compute_dtype(ComputeDType wanted, Device device);

// Why `auto` is not bf16 here. Empty: it is, or something else was asked for.
std::string dtype_fallback(ComputeDType wanted, Device device, const CpuFeatures& features);

// What to tell whoever asked for a dtype that is slower here than another. Empty: nothing.
std::string dtype_notice(ComputeDType wanted, Device device, const CpuFeatures& features);

}  // namespace thimble
