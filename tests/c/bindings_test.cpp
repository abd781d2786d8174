// libthimble.so as others see it: its symbols, a program in C, and the Python package.
#include <gtest/gtest.h>

#include <map>
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

// The sanitizer that the library is instrumented with: "asan", "tsan" or "".
std::string sanitizer() {
  const std::string names = run_program("/usr/bin/nm", {.arguments = {"-D", library().string()}}).out;
  for (const std::string name : {"asan", "tsan"})
    if (names.find("__" + name + "_init") != names.npos) return name;
  return "";
}

// For programs that are not instrumented themselves, such as Python, which never frees all of its
// memory.
std::map<std::string, std::string> for_foreign_programs() {
  std::map<std::string, std::string> environment = {{"OMP_WAIT_POLICY", "passive"}};
  if (sanitizer().empty()) return environment;
  // The runtime looks up the functions of libstdc++ when it starts.
  std::string preload;
  for (const std::string& name : {"lib" + sanitizer() + ".so", std::string("libstdc++.so.6")}) {
    const std::string path = run_program("/usr/bin/cc", {.arguments = {"-print-file-name=" + name}}).out;
    preload += path.substr(0, path.find('\n')) + " ";
  }
  environment.insert({{"LD_PRELOAD", preload}, {"ASAN_OPTIONS", "detect_leaks=0"}});
  return environment;
}

RunResult shell(const std::string& command, std::map<std::string, std::string> environment = {}) {
  return run_program("/bin/sh", {.arguments = {"-c", command}, .environment = std::move(environment)});
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
  EXPECT_EQ(names.size(), 26u);
}

// packaging/portable.py is also used for releases, so it must be able to fail.
TEST(SharedLibrary, TheCheckOfPortabilityFindsNewSymbolsAndMissingLibraries) {
  if (shell("python3 --version && objdump --version && cc --version").exit_code != 0)
    GTEST_SKIP() << "python3, binutils or cc is not installed";
  const std::string check = (source_folder() / "packaging/portable.py").string() + " ";
  const TempFolder folder;
  EXPECT_EQ(shell(check + folder.path().string()).exit_code, 1) << "an empty folder";
  folder.write("a.c", "#include <zlib.h>\nint a(void) { return (int)zlibCompileFlags(); }\n");
  ASSERT_EQ(shell("cd " + folder.path().string() + " && cc -shared -fPIC a.c -lz -o liba.so").exit_code, 0);
  const RunResult alone = shell(check + folder.path().string());
  EXPECT_EQ(alone.exit_code, 1);
  EXPECT_NE(alone.err.find("liba.so needs libz.so.1, which is not in the folder"), std::string::npos)
      << alone;
  // arc4random() came with glibc 2.36.
  folder.write("b.c", "#include <stdlib.h>\nunsigned b(void) { return arc4random(); }\n");
  ASSERT_EQ(shell("cd " + folder.path().string() + " && cc -shared -fPIC b.c -o liba.so").exit_code, 0);
  const RunResult newer = shell(check + folder.path().string());
  EXPECT_EQ(newer.exit_code, 1);
  EXPECT_NE(newer.err.find("GLIBC_2.36 for arc4random"), std::string::npos) << newer;
}

// A run in the folder, "run".
void train_in(const TempFolder& folder) {
  folder.write("text.txt", "one two three four five six seven eight nine ten\n");
  const RunResult trained = run_binary({.arguments = {"train", "--data",         "text.txt", "--layers",
                                                      "1",     "--dim",          "16",       "--heads",
                                                      "1",     "--kv-heads",     "1",        "--context",
                                                      "16",    "--batch-tokens", "32",       "--steps",
                                                      "2",     "--val-fraction", "0",        "-o",
                                                      "run",   "--quiet"},
                                        .folder = folder.path()});
  ASSERT_EQ(trained.exit_code, 0) << trained;
}

// Runs an example that takes a model and a prompt.
void check_generates(const fs::path& program, const TempFolder& folder) {
  const RunResult ran = run_program(
      program, {.arguments = {(folder / "run").string(), "one"}, .environment = for_foreign_programs()});
  EXPECT_EQ(ran.exit_code, 0) << ran;
  EXPECT_NE(ran.out.find("\"finish_reason\":"), std::string::npos) << ran;
  const RunResult missing =
      run_program(program, {.arguments = {"nowhere", "one"}, .environment = for_foreign_programs()});
  EXPECT_EQ(missing.exit_code, 1);
  EXPECT_NE(missing.err.find("nowhere"), std::string::npos) << missing;
}

TEST(SharedLibrary, AProgramInCCompilesWithoutWarningsAndRuns) {
  if (sanitizer() == "tsan") GTEST_SKIP() << "the program is not instrumented";
  if (shell("cc --version").exit_code != 0) GTEST_SKIP() << "cc is not installed";
  const TempFolder folder;
  train_in(folder);
  const fs::path bin = library().parent_path();
  const RunResult compiled =
      shell("cc -std=c99 -Wall -Wextra -Wpedantic -Werror -I" + (source_folder() / "include").string() + " " +
            (source_folder() / "examples/c/generate.c").string() + " " + library().string() + " -Wl,-rpath," +
            bin.string() + " -o " + (folder / "generate").string());
  ASSERT_EQ(compiled.exit_code, 0) << compiled;
  check_generates(folder / "generate", folder);
}

TEST(SharedLibrary, AProgramInRustCompilesAndRuns) {
  if (sanitizer() == "tsan") GTEST_SKIP() << "the program is not instrumented";
  if (shell("rustc --version").exit_code != 0) GTEST_SKIP() << "rustc is not installed";
  const TempFolder folder;
  train_in(folder);
  const std::string bin = library().parent_path().string();
  const RunResult compiled =
      shell("rustc -D warnings " + (source_folder() / "examples/rust/generate.rs").string() + " -L " + bin +
            " -l thimble -C link-arg=-Wl,-rpath," + bin + " -o " + (folder / "generate").string());
  ASSERT_EQ(compiled.exit_code, 0) << compiled;
  check_generates(folder / "generate", folder);
}

// A python3 that `condition` holds for, or "". Debian's packages belong to /usr/bin/python3, which
// may not be the first of the PATH.
std::string python_that(const std::string& condition) {
  for (const std::string python : {"python3", "/usr/bin/python3"})
    if (shell(python + " -c '" + condition + "'").exit_code == 0) return python;
  return "";
}

RunResult run_python(const std::string& command, std::map<std::string, std::string> environment = {}) {
  environment.merge(for_foreign_programs());
  environment.insert({{"THIMBLE_LIBRARY", library().string()},
                      {"PYTHONPATH", (source_folder() / "python").string()},
                      {"PYTHONDONTWRITEBYTECODE", "1"}});
  return shell(command, environment);
}

std::string unit_tests() {
  return " -m unittest discover -s " + (source_folder() / "python/tests").string();
}

TEST(PythonPackage, PassesItsTestsWithoutNumPy) {
  if (sanitizer() == "tsan") GTEST_SKIP() << "Python is not instrumented";
  const std::string python = python_that("import sys; sys.exit(sys.version_info < (3, 9))");
  if (python.empty()) GTEST_SKIP() << "Python 3.9 or newer is not installed";
  const RunResult ran = run_python(python + unit_tests(), {{"THIMBLE_TEST_WITHOUT_NUMPY", "1"}});
  EXPECT_EQ(ran.exit_code, 0) << ran;
}

TEST(PythonPackage, PassesItsTestsWithNumPy) {
  if (sanitizer() == "tsan") GTEST_SKIP() << "Python is not instrumented";
  const std::string python = python_that("import sys, numpy; sys.exit(sys.version_info < (3, 9))");
  if (python.empty()) GTEST_SKIP() << "Python 3.9 or newer with NumPy is not installed";
  const RunResult ran = run_python(python + unit_tests());
  EXPECT_EQ(ran.exit_code, 0) << ran;
}

TEST(PythonPackage, TheStepWiseExampleTrains) {
  if (sanitizer() == "tsan") GTEST_SKIP() << "Python is not instrumented";
  const std::string python = python_that("import sys; sys.exit(sys.version_info < (3, 9))");
  if (python.empty()) GTEST_SKIP() << "Python 3.9 or newer is not installed";
  const TempFolder folder;
  std::string text;
  for (int i = 0; i < 400; ++i) text += "the cat sat on the mat " + std::to_string(i % 7) + ".\n";
  folder.write("cats.txt", text);
  const RunResult ran = run_python("cd " + folder.path().string() + " && " + python + " " +
                                   (source_folder() / "examples/python/steps.py").string() + " cats.txt run");
  EXPECT_EQ(ran.exit_code, 0) << ran;
  EXPECT_NE(ran.out.find("sat on the mat"), std::string::npos) << ran;
}

// The ```python block of a document.
std::string python_lines(const fs::path& document) {
  const std::string text = read_file(document, 1 << 20), start = "```python\n";
  const std::size_t begin = text.find(start);
  if (begin == text.npos) return "";
  return text.substr(begin + start.size(), text.find("\n```", begin) - begin - start.size() + 1);
}

// No network, no compiler: PATH contains nothing but the new environment.
TEST(PythonPackage, TheWheelInstallsIntoAFreshEnvironmentAndRunsTheLinesOfTheReadme) {
  const std::string python = python_that("import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 9))");
  if (python.empty()) GTEST_SKIP() << "Python 3.9 or newer with venv and pip is not installed";
  if (!sanitizer().empty()) GTEST_SKIP() << "a wheel of a build with sanitizers is not portable";
  const TempFolder folder;
  const std::string here = folder.path().string(), build = library().parent_path().parent_path().string();
  const RunResult made = shell((source_folder() / "packaging/wheel").string() + " " + build + " " + here);
  ASSERT_EQ(made.exit_code, 0) << made;
  const std::string wheel = made.out.substr(0, made.out.find('\n'));
  EXPECT_TRUE(wheel.find("-py3-none-linux_") != wheel.npos && wheel.ends_with(".whl")) << wheel;

  const std::string bin = here + "/venv/bin";
  const RunResult installed = shell(python + " -m venv " + here + "/venv && PATH=" + bin + " " + bin +
                                        "/pip install --no-index --no-cache-dir --quiet " + wheel,
                                    {{"PYTHONPATH", ""}});
  ASSERT_EQ(installed.exit_code, 0) << installed;

  std::string text;
  for (int i = 0; i < 400; ++i) text += "the cat sat on the mat " + std::to_string(i % 7) + ".\n";
  folder.write("book.txt", text);
  std::string lines = python_lines(source_folder() / "README.md");
  const std::string steps = "steps=300";
  ASSERT_NE(lines.find(steps), std::string::npos) << lines;
  lines.replace(lines.find(steps), steps.size(), "steps=5");
  folder.write("lines.py",
               lines +
                   "\nfrom thimble import _library\n"
                   "print('library:', _library.library()._name)\n"
                   "print('licences:', __import__('importlib.metadata').metadata.files('thimble'))\n");
  const RunResult ran = shell("cd " + here + " && PATH=" + bin + " python lines.py",
                              {{"PYTHONPATH", ""}, {"OMP_WAIT_POLICY", "passive"}});
  ASSERT_EQ(ran.exit_code, 0) << ran;
  EXPECT_NE(ran.out.find("library: " + here + "/venv/lib"), std::string::npos) << ran;
  EXPECT_NE(ran.out.find("licenses/libgomp1/copyright"), std::string::npos) << ran;
  EXPECT_TRUE(fs::exists(folder / "book.thimble"));
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
