// The files of an installation, and that it works without the build folder.
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "support/run_binary.h"
#include "support/temp_folder.h"

namespace thimble::install_test {
namespace {

namespace fs = std::filesystem;

fs::path build_folder() {
  return binary_path().parent_path().parent_path();
}

RunResult run(const std::string& program, std::vector<std::string> arguments, const fs::path& folder = {},
              double timeout_seconds = 600) {
  arguments.insert(arguments.begin(), program);
  return run_program("/usr/bin/env",
                     {.arguments = arguments, .folder = folder, .timeout_seconds = timeout_seconds});
}

// Programs and libraries of a sanitizer build only link with the same sanitizer.
bool is_instrumented() {
  return run("grep", {"-q", "^THIMBLE_SANITIZE:[A-Z]*=.", (build_folder() / "CMakeCache.txt").string()})
             .exit_code == 0;
}

fs::path tiny_model(const TempFolder& folder) {
  folder.write("text.txt",
               "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen\n"
               "sixteen seventeen eighteen nineteen twenty one two three four five six seven eight nine\n");
  const RunResult trained = run_binary({.arguments = {"train", "--data",     "text.txt", "--layers",
                                                      "1",     "--dim",      "16",       "--heads",
                                                      "1",     "--kv-heads", "1",        "--mlp-hidden",
                                                      "16",    "--context",  "16",       "--batch-tokens",
                                                      "32",    "--steps",    "2",        "--val-every",
                                                      "0",     "-o",         "run",      "--quiet"},
                                        .folder = folder.path()});
  EXPECT_EQ(trained.exit_code, 0) << trained;
  return folder / "run";
}

TEST(Install, InstallsAllFilesAndRuns) {
  const TempFolder folder;
  const RunResult installed = run("cmake", {"--install", build_folder().string(), "--prefix",
                                            (folder / "p").string(), "--component", "thimble"});
  ASSERT_EQ(installed.exit_code, 0) << installed;
  for (const char* file :
       {"bin/thimble", "share/man/man1/thimble.1", "share/bash-completion/completions/thimble",
        "share/zsh/site-functions/_thimble", "share/fish/vendor_completions.d/thimble.fish",
        "share/doc/thimble/LICENSE", "share/doc/thimble/README.md", "share/doc/thimble/docs/design.md",
        "share/doc/thimble/examples/names.sh", "share/doc/thimble/examples/thimble.service"})
    EXPECT_TRUE(fs::exists(folder / "p" / file)) << file;
  const RunResult version = run((folder / "p/bin/thimble").string(), {"--version"});
  EXPECT_EQ(version.out, run_binary({.arguments = {"--version"}}).out) << version;
  EXPECT_EQ(folder.read("p/share/man/man1/thimble.1"), run_binary({.arguments = {"man"}}).out);
  const RunResult presets =
      run((folder / "p/bin/thimble").string(), {"train", "--preset", "golf", "--dry-run", "--quiet"});
  EXPECT_EQ(presets.exit_code, 0) << presets;  // presets are embedded in the binary
}

TEST(Install, FindPackageLinksAProgram) {
  if (is_instrumented()) GTEST_SKIP() << "libraries of a sanitizer build cannot be linked here";
  const TempFolder folder;
  const std::string prefix = (folder / "p").string(), build = (folder / "b").string();
  const RunResult installed =
      run("cmake", {"--install", build_folder().string(), "--prefix", prefix, "--component", "development"});
  ASSERT_EQ(installed.exit_code, 0) << installed;
  EXPECT_FALSE(fs::exists(folder / "p/include/thimble/cli"));

  const std::string source = (source_folder() / "examples/embed").string();
  const RunResult configured =
      run("cmake", {"-S", source, "-B", build, "-G", "Ninja", "-DCMAKE_PREFIX_PATH=" + prefix});
  ASSERT_EQ(configured.exit_code, 0) << configured;
  const RunResult built = run("cmake", {"--build", build});
  ASSERT_EQ(built.exit_code, 0) << built;

  const std::string model = tiny_model(folder).string();
  const RunResult ours = run_binary(
      {.arguments = {"generate", model, "one", "--greedy", "--dtype", "f32", "--max-tokens", "8"}});
  const RunResult theirs = run(build + "/embed", {model, "one", "8"});
  EXPECT_EQ(theirs.exit_code, 0) << theirs;
  EXPECT_EQ(theirs.out, ours.out) << theirs;
  EXPECT_EQ(run(build + "/embed", {(folder / "nothing").string(), "one"}).exit_code, 1);
}

// Unpacks it in another folder; Debian's libraries are not on the loader's path.
TEST(Install, ATarballRunsWhereItIsUnpacked) {
  const TempFolder folder;
  const RunResult packed =
      run("cpack", {"-G", "TGZ", "--config", (build_folder() / "CPackConfig.cmake").string(), "-B",
                    (folder / "packages").string()});
  ASSERT_EQ(packed.exit_code, 0) << packed;
  const RunResult unpacked =
      run("bash", {"-c", "mkdir elsewhere && tar xzf packages/*.tar.gz -C elsewhere --strip-components=1"},
          folder.path());
  ASSERT_EQ(unpacked.exit_code, 0) << unpacked;
  const std::string binary = (folder / "elsewhere/bin/thimble").string();
  EXPECT_EQ(run(binary, {"--version"}).out, run_binary({.arguments = {"--version"}}).out);
  const RunResult libraries = run("bash", {"-c", "ldd elsewhere/bin/thimble"}, folder.path());
  EXPECT_EQ(libraries.out.find("not found"), std::string::npos) << libraries;
  // oneDNN, which a bare system lacks, must come from the folder.
  EXPECT_NE(libraries.out.find((folder / "elsewhere").string()), std::string::npos) << libraries;
  const std::string line = libraries.out.substr(libraries.out.find("libdnnl"));
  EXPECT_NE(line.substr(0, line.find('\n')).find("/elsewhere/"), std::string::npos) << libraries;
  // The tarball has the MPI plugin but not Open MPI, which must match the mpirun that is used.
  EXPECT_EQ(fs::exists(folder / "elsewhere/lib/libthimble_mpi.so"),
            fs::exists(binary_path().parent_path() / "libthimble_mpi.so"));
  EXPECT_EQ(run("bash", {"-c", "ls elsewhere/lib | grep -c '^libmpi'"}, folder.path()).out, "0\n");
}

// systemd rates its exposure at 13 of 100; 100 is no sandbox.
TEST(Install, TheExampleServiceIsSandboxed) {
  const fs::path unit = source_folder() / "packaging/thimble.service";
  std::ifstream file(unit);
  const std::string help = run_binary({.arguments = {"serve", "--help"}}).out;
  int flags = 0;
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("ExecStart=")) continue;
    std::istringstream words(line);
    for (std::string word; words >> word;)
      if (word.starts_with("--")) {
        EXPECT_NE(help.find(word + " "), std::string::npos) << word;
        ++flags;
      }
  }
  EXPECT_GT(flags, 0);
  const RunResult rated =
      run("systemd-analyze", {"security", "--offline=true", "--threshold=20", "--no-pager", unit.string()});
  if (rated.exit_code == 127) GTEST_SKIP() << "systemd-analyze is not installed";
  EXPECT_EQ(rated.exit_code, 0) << rated;
}

// Runs packaging/try_deb, which needs root and makes a minimal Debian.
TEST(FullTierInstall, TheDebianPackageRunsInAMinimalDebian) {
  const RunResult tried =
      run((source_folder() / "packaging/try_deb").string(), {build_folder().string()}, {}, 1500);
  if (tried.exit_code == 77) GTEST_SKIP() << tried.err;
  EXPECT_EQ(tried.exit_code, 0) << tried;
  EXPECT_NE(tried.out.find("tested in a minimal Debian"), std::string::npos) << tried;
}

}  // namespace
}  // namespace thimble::install_test
