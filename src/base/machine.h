// What this machine offers: CPU, caches, memory, and how much of them this process may use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/progress.h"

namespace thimble {

class Interrupt;

// The instruction sets that kernels are written for. Each level includes those before it.
//
//   scalar       no vector instructions of ours
//   avx2         AVX2, FMA and F16C
//   avx512       AVX-512 F, BW, DQ and VL
//   avx512_bf16  products of bf16 pairs
//   amx          products of bf16 tiles
enum class CpuLevel : std::uint8_t { scalar, avx2, avx512, avx512_bf16, amx };

std::string_view cpu_level_name(CpuLevel level);

// The highest level that both the processor and the operating system support.
CpuLevel detected_cpu_level();

// The level in effect: the detected one, or what THIMBLE_CPU caps it to. Throws if the variable names no level, or one
// that this machine does not have.
CpuLevel cpu_level();

// Replaces the level in effect for as long as it lives, so that tests can run a kernel at several levels in one process.
// oneDNN is not affected: it takes its level once per process.
class CpuLevelScope {
 public:
  explicit CpuLevelScope(CpuLevel level);
  ~CpuLevelScope();
  CpuLevelScope(const CpuLevelScope&) = delete;
  CpuLevelScope& operator=(const CpuLevelScope&) = delete;

 private:
  int before_;
};

struct CpuFeatures {
  bool f16c = false, avx2 = false, fma = false;
  bool avx512f = false, avx512bw = false, avx512vl = false, avx512dq = false;
  bool avx512_vnni = false, avx512vbmi = false, avx512_bf16 = false;
  bool amx_int8 = false, amx_bf16 = false;
};

struct FeatureName {
  std::string_view name;  // as in /proc/cpuinfo
  bool CpuFeatures::*present;
};

std::span<const FeatureName> feature_names();

// What the processor and the operating system support, up to the level in effect.
CpuFeatures cpu_features();

struct Cache {
  int level = 0;
  std::string kind;  // "data", "instruction" or "unified"
  std::int64_t bytes = 0;
  int shared_by = 1;  // logical CPUs
};

struct Machine {
  std::string cpu_model = {};
  CpuFeatures features = {};
  int logical_cpus = 0;
  int affinity_cpus = 0;           // those this process may run on
  int container_cpus = 0;          // the control group's limit, rounded up; 0: none
  std::vector<Cache> caches = {};  // as the first CPU sees them
  std::int64_t memory_bytes = 0;
  std::int64_t available_bytes = 0;
  std::int64_t container_memory_bytes = 0;  // the control group's limit; 0: none

  int usable_cpus() const;
};

// `root`: where /proc and /sys are found (tests bring their own).
Machine probe_machine(const std::filesystem::path& root = "/");

// Machine::usable_cpus without looking at the rest: every start of the binary pays for it.
int usable_cpus(const std::filesystem::path& root = "/");

// What training computes in unless told otherwise, and why.
struct DtypeChoice {
  std::string_view dtype;  // "bf16" or "f32"
  std::string_view reason;
};
DtypeChoice training_dtype(const CpuFeatures& features);

struct CopyBandwidth {
  double gigabytes_per_second = 0;  // 10^9 bytes, read plus written; the median of the repeats
  std::int64_t buffer_bytes = 0;
  int repeats = 0;
  int threads = 0;
};

// Copies a buffer with all threads for about `seconds`. Throws Interrupted when asked to stop.
CopyBandwidth measure_copy_bandwidth(std::int64_t buffer_bytes, double seconds,
                                     const ProgressOutput& progress, const Interrupt& interrupt);

// What was built, and how.

std::string_view version();     // "0.1.0", from CMakeLists.txt
std::string_view build_type();  // "Release", with the sanitizer if there is one
std::string compiler();         // "g++ 12.2.0"

}  // namespace thimble
