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

std::string dtype_notice(ComputeDType wanted, Device device, const CpuFeatures& features) {
  if (wanted != ComputeDType::bf16 || device == Device::cuda || training_dtype(features).dtype == "bf16")
    return "";
  return "computing in bf16, which this CPU does not multiply: --dtype f32 would be faster";
}

}  // namespace thimble
