#include <fmt/format.h>
#include <utf8proc.h>
#include <xxhash.h>
#include <zlib.h>
#include <zstd.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#if __has_include(<histedit.h>)
#include <histedit.h>
#endif

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/machine.h"
#include "base/parallel.h"
#include "base/signals.h"
#include "base/table.h"
#include "cli/console.h"
#include "cli/option.h"
#include "cli/parse.h"
#include "dist/plugins.h"
#include "ops/cpu/gemm.h"
#include "ops/cuda_plugin.h"
#include "ops/kernel_choice.h"

namespace thimble {

namespace {

// A library that thimble links to.
struct Library {
  std::string name;
  std::optional<std::string> version;  // version at run time; nullopt: the library cannot report it
};

// An optional part that this build lacks.
struct MissingLibrary {
  std::string name, reason;
};

// 90100 -> "9.1.0"
std::string from_number(unsigned number) {
  return fmt::format("{}.{}.{}", number / 10000, number / 100 % 100, number % 100);
}

std::string pcre2_version() {
  char text[64] = {};  // "10.42 2022-12-11"
  pcre2_config(PCRE2_CONFIG_VERSION, text);
  const std::string version = text;
  return version.substr(0, version.find(' '));
}

// The library has no version function; CMake reads the version at configure time.
std::optional<std::string> sentencepiece_version() {
#ifdef THIMBLE_SENTENCEPIECE_VERSION
  return THIMBLE_SENTENCEPIECE_VERSION;
#else
  return std::nullopt;
#endif
}

std::vector<Library> libraries() {
  return {
      {"oneDNN", cpu::onednn_version()},
      {"Highway", highway_version()},
      {"OpenMP", _OPENMP >= 202011   ? "5.1"
                 : _OPENMP >= 201811 ? "5.0"
                                     : "4.5"},
      {"SentencePiece", sentencepiece_version()},
      {"zstd", ZSTD_versionString()},
      {"zlib", zlibVersion()},
      {"pcre2", pcre2_version()},
      {"utf8proc", utf8proc_version()},
#ifdef LIBEDIT_MAJOR
      {"libedit", fmt::format("{}.{}", LIBEDIT_MAJOR, LIBEDIT_MINOR)},
#endif
      {"fmt", from_number(FMT_VERSION)},
      {"xxhash", from_number(XXH_versionNumber())},
  };
}

std::vector<MissingLibrary> missing_libraries() {
  std::vector<MissingLibrary> missing;
  if (const PluginState mpi = mpi_state(); !mpi.available) missing.push_back({"MPI", mpi.text});
  if (const PluginState nccl = nccl_state(); !nccl.available) missing.push_back({"NCCL", nccl.text});
  return missing;
}

constexpr std::int64_t kMeasuredBytes = 256 << 20;
constexpr double kMeasuredSeconds = 3;

std::string limit_text(const Machine& machine) {
  if (machine.container_cpus > 0 && machine.container_cpus < machine.affinity_cpus)
    return "limited by the container";
  if (machine.affinity_cpus < machine.logical_cpus) return "limited by the process's affinity";
  return "";
}

// The file system of the current folder.
struct Disk {
  std::string folder;  // empty: unknown
  std::uint64_t total_bytes = 0, available_bytes = 0;
};

Disk disk_here() {
  std::error_code problem;  // the folder may have been deleted
  const std::filesystem::path folder = std::filesystem::current_path(problem);
  const std::filesystem::space_info space = std::filesystem::space(folder, problem);
  if (problem) return {};
  return {folder.string(), space.capacity, space.available};
}

Json as_json(const Machine& machine, const std::optional<CopyBandwidth>& copy) {
  Json features = Json::object(), caches = Json::array(), versions = Json::object();
  for (const FeatureName& feature : feature_names())
    features.set(std::string(feature.name), machine.features.*feature.present);
  for (const Cache& cache : machine.caches)
    caches.push(Json::object()
                    .set("level", cache.level)
                    .set("kind", cache.kind)
                    .set("bytes", cache.bytes)
                    .set("shared_by", cache.shared_by));
  for (const auto& [name, version] : libraries()) versions.set(name, version ? Json(*version) : Json());
  Json missing = Json::object(), kernels = Json::array();
  for (const auto& [name, reason] : missing_libraries()) missing.set(name, reason);
  for (const KernelChoice& choice : kernel_choices())
    kernels.push(
        Json::object().set("work", choice.work).set("kernel", choice.kernel).set("reason", choice.reason));
  const Disk disk = disk_here();
  const DtypeChoice dtype = training_dtype(machine.features);

  Json report = Json::object();
  report.set("version", version());
  report.set("build", Json::object().set("type", build_type()).set("compiler", compiler()));
  const DispatchLevels levels = dispatch_levels();
  const auto level_json = [](CpuLevel level) { return Json(std::string(cpu_level_name(level))); };
  report.set("cpu", Json::object()
                        .set("model", machine.cpu_model)
                        .set("level", Json::object()
                                          .set("detected", level_json(detected_cpu_level()))
                                          .set("effective", level_json(levels.ours))
                                          .set("highway", level_json(levels.highway))
                                          .set("onednn", level_json(levels.onednn)))
                        .set("logical_cpus", machine.logical_cpus)
                        .set("usable_cpus", machine.usable_cpus())
                        .set("features", features)
                        .set("caches", caches));
  report.set("memory",
             Json::object()
                 .set("total_bytes", machine.memory_bytes)
                 .set("available_bytes", machine.available_bytes)
                 .set("limit_bytes", machine.container_memory_bytes > 0 ? Json(machine.container_memory_bytes)
                                                                        : Json(nullptr)));
  report.set("disk", disk.folder.empty() ? Json()
                                         : Json::object()
                                               .set("folder", disk.folder)
                                               .set("total_bytes", disk.total_bytes)
                                               .set("available_bytes", disk.available_bytes));
  report.set("libraries", versions);
  report.set("not_built", missing);
  report.set("threads", max_threads());
  report.set("training_dtype", Json::object().set("dtype", dtype.dtype).set("reason", dtype.reason));
  report.set("kernels", kernels);
  const DeviceChoice gpu = choose_device();
  const bool cuda = gpu.runtime->device() == Device::cuda;
  report.set("cuda", Json::object()
                         .set("available", cuda)
                         .set("reason", cuda ? Json(nullptr) : Json(gpu.reason))
                         .set("name", cuda ? Json(gpu.runtime->facts().name) : Json(nullptr)));
  for (const auto& [name, state] : {std::pair{"mpi", mpi_state()}, std::pair{"nccl", nccl_state()}})
    report.set(name, Json::object()
                         .set("available", state.available)
                         .set("reason", state.available ? Json(nullptr) : Json(state.text))
                         .set("library", state.available ? Json(state.text) : Json(nullptr)));
  if (copy)
    report.set("copy", Json::object()
                           .set("gigabytes_per_second", copy->gigabytes_per_second)
                           .set("buffer_bytes", copy->buffer_bytes)
                           .set("repeats", copy->repeats)
                           .set("threads", copy->threads));
  return report;
}

std::string cache_text(const std::vector<Cache>& caches) {
  std::string text;
  for (const Cache& cache : caches) {
    if (cache.kind == "instruction") continue;
    text += fmt::format("{}L{} {}", text.empty() ? "" : ", ", cache.level,
                        in_bytes(static_cast<double>(cache.bytes)));
    if (cache.shared_by > 1) text += fmt::format(" (shared by {})", cache.shared_by);
  }
  return text.empty() ? "unknown" : text;
}

std::string feature_text(const CpuFeatures& features, bool present) {
  std::string text;
  for (const FeatureName& feature : feature_names())
    if (features.*feature.present == present) text += fmt::format(" {}", feature.name);
  return text.empty() ? "-" : text.substr(1);
}

// "avx512_bf16", or "avx2 (THIMBLE_CPU); the CPU supports avx512_bf16".
std::string level_text() {
  const CpuLevel level = cpu_level(), detected = detected_cpu_level();
  if (level == detected) return std::string(cpu_level_name(level));
  return fmt::format("{} (THIMBLE_CPU); the CPU supports {}", cpu_level_name(level),
                     cpu_level_name(detected));
}

std::string memory_text(const Machine& machine) {
  std::string text = fmt::format("{}, {} available", in_bytes(static_cast<double>(machine.memory_bytes)),
                                 in_bytes(static_cast<double>(machine.available_bytes)));
  if (machine.container_memory_bytes > 0)
    text += fmt::format("; limited to {} by the container",
                        in_bytes(static_cast<double>(machine.container_memory_bytes)));
  return text;
}

std::string disk_text(const Disk& disk) {
  if (disk.folder.empty()) return "unknown: the current folder does not exist";
  return fmt::format("{} available of {} in {}", in_bytes(static_cast<double>(disk.available_bytes)),
                     in_bytes(static_cast<double>(disk.total_bytes)), disk.folder);
}

std::string gpu_text(const DeviceChoice& choice) {
  if (choice.runtime->device() != Device::cuda) return choice.reason;
  const DeviceFacts facts = choice.runtime->facts();
  return fmt::format("{} ({}.{}), {}, {} available; {}", facts.name, facts.compute_major, facts.compute_minor,
                     in_bytes(static_cast<double>(facts.memory_bytes)),
                     in_bytes(static_cast<double>(facts.available_bytes)), facts.versions);
}

std::string library_text() {
  std::string text;
  for (const auto& [name, version] : libraries())
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, version.value_or("(unknown version)"));
  return text;
}

std::string kernels_text() {
  Table table({"operation", "kernel", "reason"});
  for (const KernelChoice& choice : kernel_choices())
    table.row({std::string(choice.work), choice.kernel, choice.reason});
  return table.text(page_width(0));
}

std::string as_text(const Machine& machine, const std::optional<CopyBandwidth>& copy) {
  std::string cpus = fmt::format("{} logical, {} usable", machine.logical_cpus, machine.usable_cpus());
  if (const std::string reason = limit_text(machine); !reason.empty()) cpus += " (" + reason + ")";
  const Disk disk = disk_here();
  const DtypeChoice dtype = training_dtype(machine.features);

  Table table;
  table.row({"thimble", fmt::format("{} ({}, {})", version(), build_type(), compiler())});
  table.row({"cpu", machine.cpu_model});
  table.row({"cpus", cpus});
  table.row({"threads", fmt::format("{} used by default", max_threads())});
  table.row({"level", level_text()});
  table.row({"features", feature_text(machine.features, true)});
  table.row({"missing", feature_text(machine.features, false)});
  table.row({"caches", cache_text(machine.caches)});
  table.row({"memory", memory_text(machine)});
  table.row({"disk", disk_text(disk)});
  table.row({"libraries", library_text()});
  table.row({"training", fmt::format("{}: {}", dtype.dtype, dtype.reason)});
  table.row({"cuda", gpu_text(choose_device())});
  table.row({"mpi", mpi_state().text});
  table.row({"nccl", nccl_state().text});
  if (copy)
    table.row({"copy", fmt::format("{:.1f} GB/s, read and write (median of {} copies of {}, {} threads)",
                                   copy->gigabytes_per_second, copy->repeats,
                                   in_bytes(static_cast<double>(copy->buffer_bytes)), copy->threads)});
  return table.text(page_width(0)) + "\n" + kernels_text();
}

int run_doctor(const Arguments& arguments, Console& console) {
  std::optional<CopyBandwidth> copy;
  if (arguments.flag("measure")) {
    const Interrupt interrupt;
    console.log().info("measuring copy bandwidth for about {} seconds", kMeasuredSeconds);
    copy = measure_copy_bandwidth(kMeasuredBytes, kMeasuredSeconds, console.progress(), interrupt);
  }
  const Machine machine = probe_machine();
  if (console.json())
    console.print_json(as_json(machine, copy));
  else
    console.print(as_text(machine, copy));
  return 0;
}

}  // namespace

Command doctor_command() {
  return {.name = "doctor",
          .summary = "show CPU, memory, GPU and libraries, and which kernels are used",
          .options = {{.name = "measure", .help = "also measure memory copy bandwidth for 3 seconds"},
                      common::threads(),
                      common::json(),
                      common::quiet()},
          .examples = {"thimble doctor", "thimble doctor --measure --json"},
          .run = run_doctor};
}

}  // namespace thimble
