#include "base/machine.h"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <memory>
#include <optional>
#include <thread>

#include "base/error.h"
#include "base/parallel.h"
#include "base/signals.h"

namespace thimble {

namespace fs = std::filesystem;

namespace {

constexpr char kLevelVariable[] = "THIMBLE_CPU";
constexpr std::array kLevels = {CpuLevel::scalar, CpuLevel::avx2, CpuLevel::avx512, CpuLevel::avx512_bf16,
                                CpuLevel::amx};

std::optional<std::string> first_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  return line;
}

// The number at the start of `text`, or nullopt ("max").
std::optional<std::int64_t> leading_number(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} ? std::optional(value) : std::nullopt;
}

std::optional<std::int64_t> number_in_file(const fs::path& path) {
  const auto line = first_line(path);
  return line ? leading_number(*line) : std::nullopt;
}

// The value of a "key : value" or "key: value" line, the format of /proc; "" if the key is absent.
std::string field(const fs::path& path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key)) continue;
    const std::size_t colon = line.find(':');
    const std::size_t start = line.find_first_not_of(" \t", std::min(line.size(), colon + 1));
    if (colon != std::string::npos && start != std::string::npos) return line.substr(start);
  }
  return "";
}

// "0-3,8" -> 5
int count_cpu_list(std::string_view list) {
  int count = 0;
  while (!list.empty()) {
    const std::size_t comma = std::min(list.find(','), list.size());
    const std::string_view part = list.substr(0, comma);
    const std::size_t dash = part.find('-');
    const std::int64_t first = leading_number(part).value_or(0);
    const std::int64_t last =
        dash == part.npos ? first : leading_number(part.substr(dash + 1)).value_or(first);
    count += static_cast<int>(last - first + 1);
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return std::max(1, count);
}

// The control group folders that limit this process for `controller`, innermost first. Version 2
// has one hierarchy for all controllers ("0::/path"), version 1 one per controller
// ("4:memory:/path").
std::vector<fs::path> control_groups(const fs::path& root, std::string_view controller) {
  std::vector<fs::path> folders;
  std::ifstream file(root / "proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == line.npos || second == line.npos) continue;
    const std::string names = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool version2 = names == ",,";
    if (!version2 && names.find("," + std::string(controller) + ",") == names.npos) continue;
    const fs::path mount = version2 ? root / "sys/fs/cgroup" : root / "sys/fs/cgroup" / controller;
    fs::path inside = fs::path(line.substr(second + 1)).relative_path();
    for (; !inside.empty(); inside = inside.parent_path()) folders.push_back(mount / inside);
    folders.push_back(mount);
  }
  return folders;
}

int container_cpus(const fs::path& root) {
  std::int64_t least = 0;
  for (const fs::path& folder : control_groups(root, "cpu")) {
    std::optional<std::int64_t> quota, period;
    if (const auto line = first_line(folder / "cpu.max")) {  // "200000 100000" or "max 100000"
      quota = leading_number(*line);
      period = leading_number(std::string_view(*line).substr(std::min(line->size(), line->find(' ') + 1)));
    } else {
      quota = number_in_file(folder / "cpu.cfs_quota_us");  // -1: no limit
      period = number_in_file(folder / "cpu.cfs_period_us");
    }
    if (!quota || !period || *quota <= 0 || *period <= 0) continue;
    const std::int64_t cpus = (*quota + *period - 1) / *period;
    least = least == 0 ? cpus : std::min(least, cpus);
  }
  return static_cast<int>(least);
}

// The files of a control group that limit memory, in version 2 and in version 1. The file pages
// among the used memory are those of mapped files and of the page cache, which the kernel can drop.
struct MemoryFiles {
  const char *limit, *used, *inactive, *active;
};
constexpr MemoryFiles kMemoryFiles[] = {
    {"memory.max", "memory.current", "inactive_file", "active_file"},
    {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", "total_active_file"}};

struct ContainerMemory {
  std::int64_t limit = 0;  // the lowest; 0: none
  std::int64_t available = std::numeric_limits<std::int64_t>::max();
};

// The value of a "key value" line.
std::int64_t statistic(const fs::path& path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(key) && line.size() > key.size() && line[key.size()] == ' ')
      return leading_number(std::string_view(line).substr(key.size() + 1)).value_or(0);
  return 0;
}

ContainerMemory container_memory(const fs::path& root, std::int64_t memory) {
  ContainerMemory found;
  for (const fs::path& folder : control_groups(root, "memory"))
    for (const MemoryFiles& files : kMemoryFiles) {
      const auto limit = number_in_file(folder / files.limit);
      // Version 1 expresses "no limit" as a number near 2^63.
      if (!limit || *limit <= 0 || *limit >= memory) continue;
      const fs::path statistics = folder / "memory.stat";
      const std::int64_t used = number_in_file(folder / files.used).value_or(0) -
                                statistic(statistics, files.inactive) - statistic(statistics, files.active);
      found.limit = found.limit == 0 ? *limit : std::min(found.limit, *limit);
      // At least one byte: 0 would mean unknown.
      found.available = std::min(found.available, *limit - std::clamp<std::int64_t>(used, 0, *limit - 1));
    }
  return found;
}

int affinity_cpus() {
  constexpr int kMaxCpus = 8192;
  const auto release = [](cpu_set_t* set) { CPU_FREE(set); };
  const std::unique_ptr<cpu_set_t, decltype(release)> set(CPU_ALLOC(kMaxCpus), release);
  const std::size_t bytes = CPU_ALLOC_SIZE(kMaxCpus);
  if (!set || sched_getaffinity(0, bytes, set.get()) != 0)
    return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  return CPU_COUNT_S(bytes, set.get());
}

std::vector<Cache> caches(const fs::path& root) {
  std::vector<Cache> found;
  const fs::path folder = root / "sys/devices/system/cpu/cpu0/cache";
  for (int i = 0; fs::exists(folder / ("index" + std::to_string(i))); ++i) {
    const fs::path index = folder / ("index" + std::to_string(i));
    Cache cache;
    cache.level = static_cast<int>(number_in_file(index / "level").value_or(0));
    cache.kind = first_line(index / "type").value_or("");
    if (!cache.kind.empty()) cache.kind[0] = static_cast<char>(std::tolower(cache.kind[0]));
    const std::string size = first_line(index / "size").value_or("0");  // "32K"
    const std::int64_t unit = size.ends_with('K') ? 1024 : size.ends_with('M') ? 1024 * 1024 : 1;
    cache.bytes = leading_number(size).value_or(0) * unit;
    cache.shared_by = count_cpu_list(first_line(index / "shared_cpu_list").value_or("0"));
    found.push_back(cache);
  }
  return found;
}

std::int64_t memory_field(const fs::path& root, std::string_view key) {
  return leading_number(field(root / "proc/meminfo", key)).value_or(0) * 1024;
}

int least_of(int affinity, int container) {
  return container > 0 ? std::min(affinity, container) : affinity;
}

}  // namespace

std::span<const FeatureName> feature_names() {
  static constexpr std::array kNames = {
      FeatureName{"f16c", &CpuFeatures::f16c},
      FeatureName{"avx2", &CpuFeatures::avx2},
      FeatureName{"fma", &CpuFeatures::fma},
      FeatureName{"avx512f", &CpuFeatures::avx512f},
      FeatureName{"avx512bw", &CpuFeatures::avx512bw},
      FeatureName{"avx512vl", &CpuFeatures::avx512vl},
      FeatureName{"avx512dq", &CpuFeatures::avx512dq},
      FeatureName{"avx512_vnni", &CpuFeatures::avx512_vnni},
      FeatureName{"avx512vbmi", &CpuFeatures::avx512vbmi},
      FeatureName{"avx512_bf16", &CpuFeatures::avx512_bf16},
      FeatureName{"amx_int8", &CpuFeatures::amx_int8},
      FeatureName{"amx_bf16", &CpuFeatures::amx_bf16},
  };
  return kNames;
}

namespace {

CpuFeatures detect_features() {
  CpuFeatures features;
#if defined(__x86_64__)
  __builtin_cpu_init();
  features.f16c = __builtin_cpu_supports("f16c") != 0;
  features.avx2 = __builtin_cpu_supports("avx2") != 0;
  features.fma = __builtin_cpu_supports("fma") != 0;
  features.avx512f = __builtin_cpu_supports("avx512f") != 0;
  features.avx512bw = __builtin_cpu_supports("avx512bw") != 0;
  features.avx512vl = __builtin_cpu_supports("avx512vl") != 0;
  features.avx512dq = __builtin_cpu_supports("avx512dq") != 0;
  features.avx512_vnni = __builtin_cpu_supports("avx512vnni") != 0;
  features.avx512vbmi = __builtin_cpu_supports("avx512vbmi") != 0;
  features.avx512_bf16 = __builtin_cpu_supports("avx512bf16") != 0;
  features.amx_int8 = __builtin_cpu_supports("amx-int8") != 0;
  features.amx_bf16 = __builtin_cpu_supports("amx-bf16") != 0;
#endif
  return features;
}

CpuLevel level_of(const CpuFeatures& f) {
  if (!(f.avx2 && f.fma && f.f16c)) return CpuLevel::scalar;
  if (!(f.avx512f && f.avx512bw && f.avx512dq && f.avx512vl)) return CpuLevel::avx2;
  if (!f.avx512_bf16) return CpuLevel::avx512;
  return f.amx_bf16 ? CpuLevel::amx : CpuLevel::avx512_bf16;
}

CpuFeatures up_to(CpuFeatures f, CpuLevel level) {
  if (level < CpuLevel::amx) f.amx_int8 = f.amx_bf16 = false;
  if (level < CpuLevel::avx512_bf16) f.avx512_bf16 = false;
  if (level < CpuLevel::avx512)
    f.avx512f = f.avx512bw = f.avx512vl = f.avx512dq = f.avx512_vnni = f.avx512vbmi = false;
  if (level < CpuLevel::avx2) f.f16c = f.avx2 = f.fma = false;
  return f;
}

const CpuFeatures& detected_features() {
  static const CpuFeatures features = detect_features();
  return features;
}

CpuLevel level_of_environment() {
  const char* wanted = std::getenv(kLevelVariable);
  if (!wanted || !*wanted) return detected_cpu_level();
  std::string available;
  for (const CpuLevel level : kLevels) {
    if (level > detected_cpu_level()) break;
    if (cpu_level_name(level) == wanted) return level;
    available += (available.empty() ? "" : ", ") + std::string(cpu_level_name(level));
  }
  const bool known =
      std::ranges::any_of(kLevels, [&](CpuLevel level) { return cpu_level_name(level) == wanted; });
  fail(Hint{"use one of the levels of this machine: " + available}, "{} is \"{}\", which {}", kLevelVariable,
       wanted, known ? "this CPU does not support" : "is not a CPU level");
}

// The level set by a CpuLevelScope, or -1.
std::atomic<int> scoped_level = -1;

}  // namespace

std::string_view cpu_level_name(CpuLevel level) {
  switch (level) {
    case CpuLevel::scalar:
      return "scalar";
    case CpuLevel::avx2:
      return "avx2";
    case CpuLevel::avx512:
      return "avx512";
    case CpuLevel::avx512_bf16:
      return "avx512_bf16";
    case CpuLevel::amx:
      break;
  }
  return "amx";
}

CpuLevel detected_cpu_level() {
  return level_of(detected_features());
}

CpuLevel cpu_level() {
  static const CpuLevel level = level_of_environment();
  const int scoped = scoped_level;
  return scoped < 0 ? level : static_cast<CpuLevel>(scoped);
}

CpuFeatures cpu_features() {
  return up_to(detected_features(), cpu_level());
}

CpuLevelScope::CpuLevelScope(CpuLevel level) : before_(scoped_level.exchange(static_cast<int>(level))) {}

CpuLevelScope::~CpuLevelScope() {
  scoped_level = before_;
}

int Machine::usable_cpus() const {
  return least_of(affinity_cpus, container_cpus);
}

int usable_cpus(const fs::path& root) {
  return least_of(affinity_cpus(), container_cpus(root));
}

Machine probe_machine(const fs::path& root) {
  Machine machine;
  machine.cpu_model = field(root / "proc/cpuinfo", "model name");
  if (machine.cpu_model.empty()) machine.cpu_model = "unknown";
  machine.features = cpu_features();
  machine.logical_cpus = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  machine.affinity_cpus = affinity_cpus();
  machine.container_cpus = container_cpus(root);
  machine.caches = caches(root);
  machine.memory_bytes = memory_field(root, "MemTotal");
  const ContainerMemory container = container_memory(root, machine.memory_bytes);
  machine.available_bytes = std::min(memory_field(root, "MemAvailable"), container.available);
  machine.container_memory_bytes = container.limit;
  return machine;
}

DtypeChoice training_dtype(const CpuFeatures& features) {
  if (features.amx_bf16) return {"bf16", "the CPU multiplies bf16 tiles (AMX)"};
  if (features.avx512_bf16) return {"bf16", "the CPU multiplies bf16 (AVX-512 BF16)"};
  return {"f32", "without AVX-512 BF16 or AMX, bf16 is slower"};
}

CopyBandwidth measure_copy_bandwidth(std::int64_t buffer_bytes, double seconds,
                                     const ProgressOutput& progress, const Interrupt& interrupt) {
  const auto from = std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(buffer_bytes));
  const auto to = std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(buffer_bytes));
  // One piece per thread: for pieces this large memcpy bypasses the caches, as a large copy should.
  const int threads = max_threads();
  const std::int64_t piece = (buffer_bytes + threads - 1) / threads;
  const auto seconds_of = [&](auto&& work) {
    const auto start = std::chrono::steady_clock::now();
    parallel_for(buffer_bytes, piece, [&](std::int64_t begin, std::int64_t end) {
      work(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
    });
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  const auto copy = [&](std::size_t begin, std::size_t size) { std::memcpy(&to[begin], &from[begin], size); };

  // The first touch allocates each page near the thread that will use it. The copy after it
  // determines the number of repeats.
  seconds_of([&](std::size_t begin, std::size_t size) {
    std::memset(&from[begin], 1, size);
    std::memset(&to[begin], 2, size);
  });
  const int repeats = static_cast<int>(std::clamp(seconds / seconds_of(copy), 5.0, 10000.0));

  ProgressBar bar(progress, "copying", "bytes", static_cast<std::uint64_t>(2 * repeats * buffer_bytes));
  std::vector<double> times;
  for (int i = 0; i < repeats; ++i) {
    interrupt.throw_if_interrupted();
    times.push_back(seconds_of(copy));
    bar.advance(static_cast<std::uint64_t>(2 * buffer_bytes));
  }
  std::nth_element(times.begin(), times.begin() + repeats / 2, times.end());
  const double median = times[static_cast<std::size_t>(repeats / 2)];
  return {2e-9 * static_cast<double>(buffer_bytes) / median, buffer_bytes, repeats, threads};
}

std::string_view version() {
  return THIMBLE_VERSION;
}

std::string_view build_type() {
#if defined(__SANITIZE_ADDRESS__)
  return THIMBLE_BUILD_TYPE " with AddressSanitizer";
#elif defined(__SANITIZE_THREAD__)
  return THIMBLE_BUILD_TYPE " with ThreadSanitizer";
#else
  return THIMBLE_BUILD_TYPE;
#endif
}

std::string compiler() {
#if defined(__clang__)
  return fmt::format("clang++ {}.{}.{}", __clang_major__, __clang_minor__, __clang_patchlevel__);
#else
  return fmt::format("g++ {}.{}.{}", __GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__);
#endif
}

}  // namespace thimble
