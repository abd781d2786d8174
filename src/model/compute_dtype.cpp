#include "model/compute_dtype.h"

#include <fmt/format.h>

#include "base/error.h"

namespace thimble {

DType compute_dtype(ComputeDType wanted, Device device) {
  const bool multiplies_bf16 = device == Device::cuda || training_dtype(cpu_features()).dtype == "bf16";
  switch (wanted) {
    case ComputeDType::automatic:
      return multiplies_bf16 ? DType::bf16 : DType::f32;
    case ComputeDType::f32:
      return DType::f32;
    case ComputeDType::bf16:
      check(multiplies_bf16, Hint{"--dtype f32, or leave --dtype out"},
            "this processor does not multiply bf16 (no AVX-512 BF16, no AMX): it would be slower than f32");
      return DType::bf16;
    case ComputeDType::f16:
      break;
  }
  check(device == Device::cuda,
        Hint{"--dtype bf16 or f32, or --device cuda; files stored in f16 are read all the same"},
        "f16 is not computed in on the CPU, which has no products of it");
  return DType::f16;
}

std::string dtype_fallback(ComputeDType wanted, Device device, const CpuFeatures& features) {
  const DtypeChoice choice = training_dtype(features);
  if (wanted != ComputeDType::automatic || device == Device::cuda || choice.dtype == "bf16") return "";
  return fmt::format("computed in {}: {}", choice.dtype, choice.reason);
}

}  // namespace thimble
