#include "ops/kernel_choice.h"

#include <fmt/format.h>
#include <hwy/highway.h>
#include <oneapi/dnnl/dnnl.h>

#include "base/machine.h"
#include "ops/cpu/amx_tiles.h"
#include "ops/cpu/bf16_tiles.h"

namespace thimble {

namespace {

// The best of what was compiled that this processor has: Highway's own choice.
std::string highway_target() {
  const std::int64_t targets = hwy::SupportedTargets() & HWY_TARGETS;
  return hwy::TargetName(targets & -targets);
}

std::string_view onednn_instructions() {
  switch (dnnl_get_effective_cpu_isa()) {
    case dnnl_cpu_isa_avx512_core_amx:
      return "AMX";
    case dnnl_cpu_isa_avx512_core_bf16:
      return "AVX-512 BF16";
    case dnnl_cpu_isa_avx512_core_vnni:
      return "AVX-512 VNNI";
    case dnnl_cpu_isa_avx512_core:
      return "AVX-512";
    case dnnl_cpu_isa_avx2_vnni:
    case dnnl_cpu_isa_avx2:
      return "AVX2";
    case dnnl_cpu_isa_avx:
      return "AVX";
    default:
      return "plain instructions";
  }
}

}  // namespace

std::string onednn_version() {
  const dnnl_version_t* version = dnnl_version();
  return fmt::format("{}.{}.{}", version->major, version->minor, version->patch);
}

std::string highway_version() {
  return fmt::format("{}.{}.{}", HWY_MAJOR, HWY_MINOR, HWY_PATCH);
}

std::vector<KernelChoice> kernel_choices() {
  const CpuFeatures features = cpu_features();
  const DtypeChoice dtype = training_dtype(features);
  const bool pairs = cpu::multiplies_bf16_pairs();
  const std::string highway = fmt::format("Highway, {}", highway_target());
  const std::string has_pairs = "the CPU multiplies pairs of bf16 (AVX-512 BF16)",
                    no_pairs = "the CPU does not multiply pairs of bf16 (AVX-512 BF16)";
  std::vector<KernelChoice> choices;
  choices.push_back({"matrix products", fmt::format("oneDNN, {} by {}", dtype.dtype, onednn_instructions()),
                     std::string(dtype.reason)});
  const bool panels = pairs && !features.amx_bf16;
  choices.push_back({"gradients of weights", panels ? "our own, bf16 panels" : "oneDNN",
                     panels  ? has_pairs
                     : pairs ? "AMX is faster than our own"
                             : no_pairs});
  choices.push_back(
      {"rows that are decoded", pairs ? "our own, bf16 rows" : highway, pairs ? has_pairs : no_pairs});
  const bool tiles = cpu::tiles::multiplies_bf16_tiles();
  choices.push_back({"attention",
                     tiles   ? "our own, AMX tiles (head sizes that 16 divides)"
                     : pairs ? "our own, bf16 tiles (head sizes that 16 divides)"
                             : highway,
                     tiles   ? "the CPU multiplies bf16 tiles (AMX)"
                     : pairs ? has_pairs
                             : no_pairs});
  choices.push_back(
      {"all other ops", highway, "the widest instructions that were compiled and that the CPU has"});
  return choices;
}

}  // namespace thimble
