// libthimble.so as others see it: its symbols, a program in C, and the Python package.
#include <gtest/gtest.h>

#include <regex>
#include <set>
#include <sstream>

#include "base/files.h"
#include "support/run_binary.h"
#include "support/temp_folder.h"

namespace thimble::bindings_test {
namespace {

namespace fs = std::filesystem;

fs::path library() {
  return binary_path().parent_path() / "libthimble.so.0";
}

RunResult shell(const std::string& command, const std::map<std::string, std::string>& environment = {}) {
  return run_program("/bin/sh", {.arguments = {"-c", command}, .environment = environment});
}

std::set<std::string> functions_of_the_header() {
  const std::string header = read_file(source_folder() / "include/thimble.h", 1 << 20);
  const std::regex declaration(R"(\n(?:const )?(?:thimble_\w+|uint32_t|void) \*?(thimble_\w+)\()");
  std::set<std::string> names;
  for (std::sregex_iterator at(header.begin(), header.end(), declaration), end; at != end; ++at)
    names.insert((*at)[1]);
  return names;
}

TEST(SharedLibrary, ExportsTheFunctionsOfTheHeaderAndNothingElse) {
  const RunResult listed = shell("nm -D --defined-only " + library().string());
  if (listed.exit_code == 127) GTEST_SKIP() << "nm is not installed";
  std::set<std::string> names;
  std::istringstream lines(listed.out);
  for (std::string address, kind, name; lines >> address >> kind >> name;)
    if (kind != "A") names.insert(name.substr(0, name.find('@')));
  EXPECT_EQ(names, functions_of_the_header()) << listed;
  EXPECT_EQ(names.size(), 17u);
}

TEST(SharedLibrary, NeedsNoNewerSystemThanDebian12) {
  const RunResult listed = shell("objdump -T " + library().string());
  if (listed.exit_code == 127) GTEST_SKIP() << "objdump is not installed";
  const std::regex version(R"((GLIBC|GLIBCXX)_(\d+)\.(\d+)(?:\.(\d+))?\b)");
  for (std::sregex_iterator at(listed.out.begin(), listed.out.end(), version), end; at != end; ++at) {
    const bool glibc = (*at)[1] == "GLIBC";
    const int minor = std::stoi((*at)[3]), patch = (*at)[4].matched ? std::stoi((*at)[4]) : 0;
    EXPECT_LE(glibc ? minor : patch, glibc ? 36 : 30) << (*at)[0];
  }
}

TEST(SharedLibrary, AProgramInCCompilesWithoutWarningsAndRuns) {
  const RunResult compiler = shell("cc --version");
  if (compiler.exit_code != 0) GTEST_SKIP() << "cc is not installed";
  const TempFolder folder;
  folder.write("text.txt", "one two three four five six seven eight nine ten\n");
  const RunResult trained = run_binary({.arguments = {"train", "--data",         "text.txt", "--layers",
                                                      "1",     "--dim",          "16",       "--heads",
                                                      "1",     "--kv-heads",     "1",        "--context",
                                                      "16",    "--batch-tokens", "32",       "--steps",
                                                      "2",     "--val-fraction", "0",        "-o",
                                                      "run",   "--quiet"},
                                        .folder = folder.path()});
  ASSERT_EQ(trained.exit_code, 0) << trained;
  const fs::path bin = library().parent_path();
  const RunResult compiled =
      shell("cc -std=c99 -Wall -Wextra -Wpedantic -Werror -I" + (source_folder() / "include").string() + " " +
            (source_folder() / "examples/c/generate.c").string() + " " + library().string() + " -Wl,-rpath," +
            bin.string() + " -o " + (folder / "generate").string());
  ASSERT_EQ(compiled.exit_code, 0) << compiled;
  const RunResult ran = run_program(folder / "generate", {.arguments = {(folder / "run").string(), "one"}});
  EXPECT_EQ(ran.exit_code, 0) << ran;
  EXPECT_NE(ran.out.find("\"finish_reason\":"), std::string::npos) << ran;
  const RunResult missing = run_program(folder / "generate", {.arguments = {"nowhere", "one"}});
  EXPECT_EQ(missing.exit_code, 1);
  EXPECT_NE(missing.err.find("nowhere"), std::string::npos) << missing;
}

TEST(PythonPackage, PassesItsTests) {
  if (shell("python3 -c 'import sys; sys.exit(sys.version_info < (3, 9))'").exit_code != 0)
    GTEST_SKIP() << "Python 3.9 or newer is not installed";
  const RunResult ran =
      shell("python3 -m unittest discover -s " + (source_folder() / "python/tests").string(),
            {{"THIMBLE_LIBRARY", library().string()},
             {"PYTHONPATH", (source_folder() / "python").string()},
             {"PYTHONDONTWRITEBYTECODE", "1"},
             {"OMP_WAIT_POLICY", "passive"}});
  EXPECT_EQ(ran.exit_code, 0) << ran;
}

TEST(PythonPackage, PassesMypy) {
  if (shell("mypy --version").exit_code != 0) GTEST_SKIP() << "mypy is not installed";
  const TempFolder folder;
  const RunResult checked = shell("mypy --strict --cache-dir " + folder.path().string() + " " +
                                  (source_folder() / "python/thimble").string());
  EXPECT_EQ(checked.exit_code, 0) << checked;
}

}  // namespace
}  // namespace thimble::bindings_test
