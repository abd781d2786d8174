// `thimble doctor`: the version of every library, and every kernel choice with its reason.
// frame_test.cpp tests its exit codes and output streams.
#include <fmt/format.h>

#include <cctype>

#include "base/json.h"
#include "base/machine.h"
#include "support/run_binary.h"
#include "support/temp_folder.h"

namespace thimble {
namespace {

Json doctor(const std::map<std::string, std::string>& environment = {}) {
  const RunResult run = run_binary({.arguments = {"doctor", "--json"}, .environment = environment});
  EXPECT_EQ(run.exit_code, 0) << run;
  return parse_json(run.out, "stdout");
}

const Json& kernel_of(const Json& report, std::string_view work) {
  for (const Json& kernel : report.at("kernels").as_array())
    if (kernel.at("work").as_string() == work) return kernel;
  throw std::out_of_range(std::string(work));
}

TEST(Doctor, ListsEveryLibrary) {
  const Json report = doctor();
  for (const char* name : {"oneDNN", "Highway", "OpenMP", "SentencePiece", "zstd", "zlib", "pcre2",
                           "utf8proc", "fmt", "xxhash"}) {
    const Json& version = report.at("libraries").at(name);
    if (version.is_null()) continue;  // this library has no version function
    EXPECT_TRUE(std::isdigit(version.as_string().at(0))) << name << " " << version.as_string();
  }
  for (const auto& [key, name] : {std::pair{"mpi", "MPI"}, std::pair{"nccl", "NCCL"}}) {
    const bool available = report.at(key).at("available").as_bool();
    EXPECT_EQ(report.at(key).at("library").is_null(), !available) << name;
    EXPECT_EQ(report.at("not_built").find(name) == nullptr, available) << name;
    EXPECT_TRUE(!available || report.at(key).at("library").as_string().find(name) != std::string::npos)
        << name;
  }
  EXPECT_GT(report.at("disk").at("total_bytes").as_uint(),
            report.at("disk").at("available_bytes").as_uint() / 2);
}

TEST(Doctor, WorksInADeletedFolder) {
  const TempFolder folder;
  const std::string command = fmt::format("mkdir '{0}' && cd '{0}' && rmdir '{0}' && '{1}' doctor --json",
                                          (folder / "gone").string(), binary_path().string());
  const RunResult run = run_program("/bin/sh", {.arguments = {"-c", command}});
  ASSERT_EQ(run.exit_code, 0) << run;
  EXPECT_TRUE(parse_json(run.out, "stdout").at("disk").is_null());
}

TEST(Doctor, ReportsWhyMpiAndNcclAreNotAvailable) {
  const Json report =
      doctor({{"THIMBLE_MPI_PLUGIN", "/nowhere/mpi.so"}, {"THIMBLE_NCCL_PLUGIN", "/nowhere/nccl.so"}});
  for (const char* key : {"mpi", "nccl"}) {
    EXPECT_FALSE(report.at(key).at("available").as_bool()) << key;
    EXPECT_NE(report.at(key).at("reason").as_string().find("/nowhere/"), std::string::npos) << key;
  }
}

TEST(Doctor, ListsKernelsWithReasons) {
  const Json report = doctor();
  EXPECT_GE(report.at("kernels").size(), 4u);
  for (const Json& kernel : report.at("kernels").as_array())
    for (const char* key : {"work", "kernel", "reason"}) EXPECT_FALSE(kernel.at(key).as_string().empty());
  EXPECT_NE(kernel_of(report, "all other ops").at("kernel").as_string().find("Highway"), std::string::npos);
}

TEST(Doctor, CpuLevelsApplyToAllThreeDispatchers) {
  const std::string detected = doctor().at("cpu").at("level").at("detected").as_string();
  for (const std::string level : {"scalar", "avx2", "avx512", "avx512_bf16", "amx"}) {
    SCOPED_TRACE(level);
    const Json report = doctor({{"THIMBLE_CPU", level}});
    const Json& levels = report.at("cpu").at("level");
    EXPECT_EQ(levels.at("detected").as_string(), detected);
    EXPECT_EQ(levels.at("effective").as_string(), level);
    EXPECT_EQ(levels.at("onednn").as_string(), level);
    // Highway has no target above AVX-512.
    EXPECT_EQ(levels.at("highway").as_string(), level.starts_with("a") && level != "avx2" ? "avx512" : level);
    const bool multiplies_bf16 = level == "avx512_bf16" || level == "amx";
    EXPECT_EQ(report.at("training_dtype").at("dtype").as_string(), multiplies_bf16 ? "bf16" : "f32");
    EXPECT_EQ(kernel_of(report, "attention").at("kernel").as_string().starts_with("our own"),
              multiplies_bf16);
    if (level == detected) break;
  }
}

TEST(Doctor, RejectsUnsupportedCpuLevelsWithAList) {
  for (const char* level : {"avx1024", "AVX2"}) {
    const RunResult run = run_binary({.arguments = {"doctor"}, .environment = {{"THIMBLE_CPU", level}}});
    EXPECT_EQ(run.exit_code, 1) << run;
    EXPECT_NE(run.err.find(fmt::format("\"{}\"", level)), std::string::npos) << run;
    EXPECT_NE(run.err.find("scalar"), std::string::npos) << run;
  }
  if (detected_cpu_level() == CpuLevel::amx) return;
  const RunResult run = run_binary({.arguments = {"doctor"}, .environment = {{"THIMBLE_CPU", "amx"}}});
  EXPECT_EQ(run.exit_code, 1) << run;
  EXPECT_NE(run.err.find("this CPU does not support"), std::string::npos) << run;
}

}  // namespace
}  // namespace thimble
