#include "ops/kernel_choice.h"

#include <fmt/format.h>
#include <hwy/highway.h>

#include "base/error.h"
#include "ops/cpu/amx_tiles.h"
#include "ops/cpu/bf16_tiles.h"
#include "ops/cpu/gemm.h"
#include "ops/cpu/linear.h"

namespace thimble {

namespace {

#if HWY_ARCH_X86
constexpr std::int64_t kAboveAvx2 = HWY_AVX3 | HWY_AVX3_DL;
constexpr std::int64_t kAboveScalar = kAboveAvx2 | HWY_AVX2 | HWY_SSE4 | HWY_SSSE3;
#else
constexpr std::int64_t kAboveAvx2 = 0, kAboveScalar = 0;
#endif

// Targets that are compiled in, supported and allowed by the level. The lowest bit is the best.
std::int64_t highway_targets() {
  const std::int64_t supported = hwy::SupportedTargets();
  // Without this call, Highway 1.0.3 returns all targets of the CPU, including disabled ones.
  hwy::GetChosenTarget().Update(supported);
  return supported & HWY_TARGETS;
}

// Highway chooses at its first call and oneDNN at its first primitive, so set both before main().
const bool applied = [] {
  try {
    const CpuLevel level = cpu_level();
    if (level == CpuLevel::scalar) hwy::DisableTargets(kAboveScalar);
    if (level == CpuLevel::avx2) hwy::DisableTargets(kAboveAvx2);
    // Otherwise let oneDNN choose: it supports more instruction sets than there are levels.
    if (level < detected_cpu_level() || level == CpuLevel::scalar) cpu::cap_onednn(level);
  } catch (const Error&) {
    return false;  // THIMBLE_CPU is invalid: apply_cpu_level() throws it where it can be caught
  }
  return true;
}();

}  // namespace

void apply_cpu_level() {
  if (!applied) cpu_level();
}

DispatchLevels dispatch_levels() {
  const std::int64_t targets = highway_targets(), best = targets & -targets;
  const CpuLevel highway = best == HWY_SCALAR  ? CpuLevel::scalar
                           : best & kAboveAvx2 ? CpuLevel::avx512
                                               : CpuLevel::avx2;
  return {cpu_level(), highway, cpu::onednn_level()};
}

std::string highway_version() {
  return fmt::format("{}.{}.{}", HWY_MAJOR, HWY_MINOR, HWY_PATCH);
}

std::vector<KernelChoice> kernel_choices() {
  const CpuFeatures features = cpu_features();
  const DtypeChoice dtype = training_dtype(features);
  const bool pairs = cpu::multiplies_bf16_pairs(), tiles = cpu::tiles::multiplies_bf16_tiles();
  const bool packed = cpu::uses_packed_gemm(dtype.dtype == "bf16" ? DType::bf16 : DType::f32);
  const std::int64_t targets = highway_targets();
  const std::string highway = fmt::format("Highway, {}", hwy::TargetName(targets & -targets));
  const std::string products =
      packed ? "our own, f32 panels"
             : fmt::format("oneDNN, {} by {}", dtype.dtype, cpu_level_name(cpu::onednn_level()));
  const std::string has_pairs = "the CPU multiplies pairs of bf16 (AVX-512 BF16)",
                    no_pairs = "the CPU does not multiply pairs of bf16 (AVX-512 BF16)";
  std::vector<KernelChoice> choices;
  choices.push_back({"matrix products", products,
                     packed ? "the same bits for any number of threads, at the speed of oneDNN"
                            : std::string(dtype.reason)});
  if (pairs && !tiles)
    choices.push_back({"gradients of weights", "our own, bf16 panels", has_pairs});
  else
    choices.push_back({"gradients of weights", products, pairs ? "AMX is faster than our own" : no_pairs});
  if (cpu::supports_linear_rows_bf16())
    choices.push_back({"decoding", "our own, bf16 rows", has_pairs});
  else if (cpu::supports_linear_rows_avx512())
    choices.push_back({"decoding", "our own, 16 lanes", no_pairs});
  else if (cpu::supports_linear_rows_avx2())
    choices.push_back({"decoding", "our own, 8 lanes", no_pairs});
  else
    choices.push_back({"decoding", highway, no_pairs});
  if (tiles)
    choices.push_back({"attention", "our own, AMX tiles (head size a multiple of 16)",
                       "the CPU multiplies bf16 tiles (AMX)"});
  else if (pairs)
    choices.push_back({"attention", "our own, bf16 tiles (head size a multiple of 16)", has_pairs});
  else
    choices.push_back({"attention", highway, no_pairs});
  choices.push_back(
      {"all other ops", highway, "the widest instructions that are compiled in and supported by the CPU"});
  return choices;
}

}  // namespace thimble
