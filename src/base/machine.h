// The CPU, caches and memory of this machine, and how much of them this process may use.
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
//   scalar       no explicit vector instructions
//   avx2         AVX2, FMA and F16C
//   avx512       AVX-512 F, BW, DQ and VL
//   avx512_bf16  products of bf16 pairs
//   amx          products of bf16 tiles
enum class CpuLevel : std::uint8_t { scalar, avx2, avx512, avx512_bf16, amx };

std::string_view cpu_level_name(CpuLevel level);

// The highest level that both the processor and the operating system support.
CpuLevel detected_cpu_level();

// The level in effect: the detected one, or the lower one set by THIMBLE_CPU. Throws if the
// variable is not a level name or names a level that this machine does not support.
CpuLevel cpu_level();

// Overrides the level in effect during its lifetime, so that tests can run a kernel at several
// levels in one process. oneDNN is not affected: it reads its level once per process.
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

// The features supported by both the processor and the operating system, up to the level in effect.
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
  int affinity_cpus = 0;           // CPUs this process may run on
  int container_cpus = 0;          // the control group's limit, rounded up; 0: no limit
  std::vector<Cache> caches = {};  // of the first CPU
  std::int64_t memory_bytes = 0;
  std::int64_t available_bytes = 0;         // to this process, within the control group's limit
  std::int64_t container_memory_bytes = 0;  // the control group's limit; 0: no limit

  int usable_cpus() const;
};

// `root` contains proc/ and sys/; tests pass their own.
Machine probe_machine(const std::filesystem::path& root = "/");

// Returns Machine::usable_cpus without probing anything else: every start of the binary needs it.
int usable_cpus(const std::filesystem::path& root = "/");

// The default dtype for training, with the reason.
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

// Copies a buffer with all threads for about `seconds`. Throws Interrupted if interrupted.
CopyBandwidth measure_copy_bandwidth(std::int64_t buffer_bytes, double seconds,
                                     const ProgressOutput& progress, const Interrupt& interrupt);

// Build information.

std::string_view version();     // "0.1.0", from CMakeLists.txt
std::string_view build_type();  // "Release", with the sanitizer if there is one
std::string compiler();         // "g++ 12.2.0"

}  // namespace thimble
