// `thimble doctor`: every library by its version, and every choice with its reason. (What the frame promises of it is in
// frame_test.cpp.)
#include <fmt/format.h>

#include <cctype>

#include "base/json.h"
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

TEST(Doctor, KnowsEveryLibrary) {
  const Json report = doctor();
  for (const char* name : {"oneDNN", "Highway", "OpenMP", "SentencePiece", "zstd", "zlib", "pcre2",
                           "utf8proc", "fmt", "xxhash"}) {
    const Json& version = report.at("libraries").at(name);
    if (version.is_null()) continue;  // a library that cannot tell is known, too
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

TEST(Doctor, LooksAtTheMachineFromAFolderThatIsGone) {
  const TempFolder folder;
  const std::string command = fmt::format("mkdir '{0}' && cd '{0}' && rmdir '{0}' && '{1}' doctor --json",
                                          (folder / "gone").string(), binary_path().string());
  const RunResult run = run_program("/bin/sh", {.arguments = {"-c", command}});
  ASSERT_EQ(run.exit_code, 0) << run;
  EXPECT_TRUE(parse_json(run.out, "stdout").at("disk").is_null());
}

TEST(Doctor, WithoutMpiAndNcclItSaysWhyAndGoesOn) {
  const Json report =
      doctor({{"THIMBLE_MPI_PLUGIN", "/nowhere/mpi.so"}, {"THIMBLE_NCCL_PLUGIN", "/nowhere/nccl.so"}});
  for (const char* key : {"mpi", "nccl"}) {
    EXPECT_FALSE(report.at(key).at("available").as_bool()) << key;
    EXPECT_NE(report.at(key).at("reason").as_string().find("/nowhere/"), std::string::npos) << key;
  }
}

TEST(Doctor, SaysWhichKernelsRunAndWhy) {
  const Json report = doctor();
  EXPECT_GE(report.at("kernels").size(), 4u);
  for (const Json& kernel : report.at("kernels").as_array())
    for (const char* key : {"work", "kernel", "reason"}) EXPECT_FALSE(kernel.at(key).as_string().empty());
  EXPECT_NE(kernel_of(report, "all other ops").at("kernel").as_string().find("Highway"), std::string::npos);
}

TEST(Doctor, ALesserMachineRunsOtherKernels) {
  const Json report = doctor({{"THIMBLE_WITHOUT", "avx512_bf16,amx_bf16"}});
  EXPECT_EQ(report.at("training_dtype").at("dtype").as_string(), "f32");
  EXPECT_TRUE(kernel_of(report, "matrix products").at("kernel").as_string().starts_with("oneDNN, f32"));
  for (const char* work : {"rows that are decoded", "attention"})
    EXPECT_TRUE(kernel_of(report, work).at("kernel").as_string().starts_with("Highway")) << work;
  EXPECT_EQ(kernel_of(report, "gradients of weights").at("kernel").as_string(), "oneDNN");
}

}  // namespace
}  // namespace thimble
