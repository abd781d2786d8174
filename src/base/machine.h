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

// Set only if both the processor and the operating system support it.
struct CpuFeatures {
  bool f16c = false, avx2 = false, fma = false;
  bool avx512f = false, avx512bw = false, avx512vl = false, avx512dq = false;
  bool avx512_vnni = false, avx512_bf16 = false;
  bool amx_int8 = false, amx_bf16 = false;
};

struct FeatureName {
  std::string_view name;  // as in /proc/cpuinfo
  bool CpuFeatures::*present;
};

std::span<const FeatureName> feature_names();

// What the processor has, less what THIMBLE_WITHOUT names ("avx512_bf16,amx_bf16"): how tests, and the curious, see
// what a lesser machine would do. (The Highway kernels choose for themselves.)
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

}  // namespace thimble
