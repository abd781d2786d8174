#include "base/machine.h"

#include <algorithm>
#include <csignal>
#include <fstream>
#include <iterator>
#include <sstream>

#include "base/error.h"
#include "base/signals.h"
#include "support/temp_folder.h"

namespace thimble {
namespace {

TEST(Machine, FeaturesMatchProcCpuinfo) {
  const CpuLevelScope no_cap(detected_cpu_level());
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line) && !line.starts_with("flags")) {
  }
  if (line.empty()) GTEST_SKIP() << "/proc/cpuinfo lists no flags here";
  std::istringstream words(line);
  const std::vector<std::string> flags{std::istream_iterator<std::string>(words), {}};
  const CpuFeatures features = cpu_features();
  for (const FeatureName& feature : feature_names())
    EXPECT_EQ(features.*feature.present, std::count(flags.begin(), flags.end(), feature.name) > 0)
        << feature.name;
}

TEST(Machine, ThisMachineHasPlausibleValues) {
  const Machine machine = probe_machine();
  EXPECT_GE(machine.logical_cpus, 1);
  EXPECT_GE(machine.usable_cpus(), 1);
  EXPECT_LE(machine.usable_cpus(), machine.logical_cpus);
  EXPECT_EQ(machine.usable_cpus(), usable_cpus());
  EXPECT_GT(machine.available_bytes, 0);
  EXPECT_LE(machine.available_bytes, machine.memory_bytes);
}

TEST(MachineElsewhere, EmptyRootGivesDefaults) {
  const TempFolder root;
  const Machine machine = probe_machine(root.path());
  EXPECT_EQ(machine.cpu_model, "unknown");
  EXPECT_EQ(machine.container_cpus, 0);
  EXPECT_EQ(machine.memory_bytes, 0);
  EXPECT_TRUE(machine.caches.empty());
}

TEST(MachineElsewhere, ReadsModelMemoryAndCaches) {
  const TempFolder root;
  root.write("proc/cpuinfo", "processor\t: 0\nmodel\t\t: 17\nmodel name\t: A Fast One\nflags\t\t: fpu\n");
  root.write("proc/meminfo", "MemTotal:       1000 kB\nMemFree:  1 kB\nMemAvailable:    400 kB\n");
  const std::string cache = "sys/devices/system/cpu/cpu0/cache/index0";
  root.write(cache + "/level", "3\n");
  root.write(cache + "/type", "Unified\n");
  root.write(cache + "/size", "32768K\n");
  root.write(cache + "/shared_cpu_list", "0-3,8,10-11\n");
  const Machine machine = probe_machine(root.path());
  EXPECT_EQ(machine.cpu_model, "A Fast One");
  EXPECT_EQ(machine.memory_bytes, 1000 * 1024);
  EXPECT_EQ(machine.available_bytes, 400 * 1024);
  ASSERT_EQ(machine.caches.size(), 1u);
  EXPECT_EQ(machine.caches[0].level, 3);
  EXPECT_EQ(machine.caches[0].kind, "unified");
  EXPECT_EQ(machine.caches[0].bytes, 32 << 20);
  EXPECT_EQ(machine.caches[0].shared_by, 7);
}

TEST(MachineElsewhere, UsesTheTightestControlGroupLimit) {
  const TempFolder root;
  root.write("proc/meminfo", "MemTotal: 1000 kB\n");
  root.write("proc/self/cgroup", "0::/outer/inner\n");
  root.write("sys/fs/cgroup/outer/inner/cpu.max", "max 100000\n");
  root.write("sys/fs/cgroup/outer/cpu.max", "150000 100000\n");
  root.write("sys/fs/cgroup/cpu.max", "800000 100000\n");
  root.write("sys/fs/cgroup/outer/inner/memory.max", "max\n");
  root.write("sys/fs/cgroup/outer/memory.max", "500000\n");
  const Machine machine = probe_machine(root.path());
  EXPECT_EQ(machine.container_cpus, 2);  // a quota of 1.5 CPUs is rounded up
  EXPECT_EQ(machine.container_memory_bytes, 500000);
}

TEST(MachineElsewhere, OtherProcessesOfAContainerReduceItsAvailableMemory) {
  const TempFolder root;
  root.write("proc/meminfo", "MemTotal: 10000 kB\nMemAvailable: 9000 kB\n");
  root.write("proc/self/cgroup", "0::/outer/inner\n");
  root.write("sys/fs/cgroup/outer/memory.max", "5000000\n");
  const auto available = [&] { return probe_machine(root.path()).available_bytes; };
  EXPECT_EQ(available(), 5000000) << "unknown use";
  root.write("sys/fs/cgroup/outer/memory.current", "4000000\n");
  EXPECT_EQ(available(), 1000000);
  // The kernel can drop pages of files.
  root.write("sys/fs/cgroup/outer/memory.stat", "anon 1\ninactive_file 300000\nactive_file 200000\n");
  EXPECT_EQ(available(), 1500000);
  root.write("sys/fs/cgroup/outer/inner/memory.max", "1000000\n");
  root.write("sys/fs/cgroup/outer/inner/memory.current", "990000\n");
  EXPECT_EQ(available(), 10000) << "the tightest group";
  root.write("sys/fs/cgroup/outer/inner/memory.current", "2000000\n");
  EXPECT_EQ(available(), 1) << "0 would mean unknown";
  root.write("proc/self/cgroup", "4:memory:/box\n");
  root.write("sys/fs/cgroup/memory/box/memory.limit_in_bytes", "5000000\n");
  root.write("sys/fs/cgroup/memory/box/memory.usage_in_bytes", "3000000\n");
  root.write("sys/fs/cgroup/memory/box/memory.stat", "active_file 5\ntotal_active_file 100\n");
  EXPECT_EQ(available(), 2000100) << "version 1";
  root.write("proc/meminfo", "MemTotal: 10000 kB\nMemAvailable: 7 kB\n");
  EXPECT_EQ(available(), 7 * 1024);
}

TEST(MachineElsewhere, SupportsVersion1ControlGroups) {
  const TempFolder root;
  root.write("proc/meminfo", "MemTotal: 1000 kB\n");
  root.write("proc/self/cgroup", "4:memory:/box\n2:cpu,cpuacct:/box\n0::/\n");
  root.write("sys/fs/cgroup/cpu/box/cpu.cfs_quota_us", "300000\n");
  root.write("sys/fs/cgroup/cpu/box/cpu.cfs_period_us", "100000\n");
  root.write("sys/fs/cgroup/memory/box/memory.limit_in_bytes", "9223372036854771712\n");
  const Machine machine = probe_machine(root.path());
  EXPECT_EQ(machine.container_cpus, 3);
  EXPECT_EQ(machine.container_memory_bytes, 0);
}

TEST(Machine, ContainerLimitReducesUsableCpus) {
  EXPECT_EQ((Machine{.affinity_cpus = 8, .container_cpus = 0}.usable_cpus()), 8);
  EXPECT_EQ((Machine{.affinity_cpus = 8, .container_cpus = 3}.usable_cpus()), 3);
  EXPECT_EQ((Machine{.affinity_cpus = 2, .container_cpus = 3}.usable_cpus()), 2);
}

TEST(CpuLevel, LimitsFeaturesAndDtype) {
  {
    const CpuLevelScope scope(CpuLevel::scalar);
    for (const FeatureName& feature : feature_names())
      EXPECT_FALSE(cpu_features().*feature.present) << feature.name;
  }
  const CpuLevel detected = detected_cpu_level();
  if (detected < CpuLevel::avx2) GTEST_SKIP() << "this CPU has only one level";
  const CpuLevelScope scope(CpuLevel::avx2);
  EXPECT_EQ(cpu_level(), CpuLevel::avx2);
  EXPECT_TRUE(cpu_features().avx2);
  EXPECT_FALSE(cpu_features().avx512f);
  EXPECT_EQ(training_dtype(cpu_features()).dtype, "f32");
  {
    const CpuLevelScope inner(detected);
    EXPECT_EQ(cpu_level(), detected);
  }
  EXPECT_EQ(cpu_level(), CpuLevel::avx2);
}

TEST(TrainingDtype, IsBf16OnlyWithHardwareSupport) {
  EXPECT_EQ(training_dtype({}).dtype, "f32");
  EXPECT_EQ(training_dtype({.avx512f = true}).dtype, "f32");
  EXPECT_EQ(training_dtype({.avx512_bf16 = true}).dtype, "bf16");
  EXPECT_EQ(training_dtype({.amx_bf16 = true}).dtype, "bf16");
}

TEST(CopyBandwidth, IsMeasuredAndCanBeInterrupted) {
  const Interrupt interrupt;
  const CopyBandwidth copy = measure_copy_bandwidth(1 << 20, 0.01, ProgressOutput::nowhere(), interrupt);
  EXPECT_GT(copy.gigabytes_per_second, 0);
  EXPECT_GE(copy.repeats, 5);
  std::raise(SIGINT);
  EXPECT_THROW(measure_copy_bandwidth(1 << 20, 0.01, ProgressOutput::nowhere(), interrupt), Interrupted);
}

}  // namespace
}  // namespace thimble
