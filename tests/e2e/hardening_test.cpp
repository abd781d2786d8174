// What is inside the binary and the plugins beside it: nothing that can be overwritten needs to be, nothing is loaded from
// where others may write, nothing says where they were built.
#include <fstream>
#include <iterator>
#include <sstream>

#include "support/run_binary.h"
#include "support/temp_folder.h"

namespace thimble::hardening_test {
namespace {

namespace fs = std::filesystem;

fs::path build_folder() {
  return binary_path().parent_path().parent_path();
}

// Of the build that is tested: NAME:TYPE=value.
std::string cmake_setting(const std::string& name) {
  std::ifstream cache(build_folder() / "CMakeCache.txt");
  for (std::string line; std::getline(cache, line);)
    if (line.starts_with(name + ":")) return line.substr(line.find('=') + 1);
  return "";
}

// "": it is hardened (cmake/Harden.cmake says which builds are).
std::string why_not_hardened() {
  if (const std::string type = cmake_setting("CMAKE_BUILD_TYPE"); type != "Release")
    return "the build type is " + type;
  if (const std::string sanitizer = cmake_setting("THIMBLE_SANITIZE"); !sanitizer.empty())
    return "the " + sanitizer + " sanitizer is on";
  return "";
}

std::string text_of(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

// Lines of what readelf says that hold `word`.
std::vector<std::string> lines_with(const std::string& word, const fs::path& file,
                                    const std::string& option) {
  const RunResult read = run_program("/usr/bin/env", {.arguments = {"readelf", "-W", option, file.string()}});
  EXPECT_EQ(read.exit_code, 0) << read;
  std::istringstream text(read.out);
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);)
    if (line.find(word) != std::string::npos) lines.push_back(line);
  return lines;
}

std::string line_with(const std::string& word, const fs::path& file, const std::string& option) {
  const std::vector<std::string> lines = lines_with(word, file, option);
  return lines.empty() ? "" : lines.front();
}

// The folders that ld.so searches for the libraries of `file`: of RPATH or RUNPATH.
std::vector<std::string> search_path(const fs::path& file) {
  std::vector<std::string> folders;
  for (const std::string& line : lines_with("PATH)", file, "-d")) {
    const std::size_t begin = line.find('[') + 1;
    std::istringstream path(line.substr(begin, line.rfind(']') - begin) + ":");
    for (std::string folder; std::getline(path, folder, ':');) folders.push_back(folder);
  }
  return folders;
}

std::vector<fs::path> binary_and_plugins() {
  std::vector<fs::path> files{binary_path()};
  for (const fs::directory_entry& entry : fs::directory_iterator(binary_path().parent_path()))
    if (entry.path().extension() == ".so") files.push_back(entry.path());
  return files;
}

TEST(Hardening, TheBinaryIsPositionIndependent) {
  if (const std::string reason = why_not_hardened(); !reason.empty()) GTEST_SKIP() << reason;
  EXPECT_NE(line_with("Type:", binary_path(), "-h").find("DYN"), std::string::npos);
  EXPECT_NE(line_with("(FLAGS_1)", binary_path(), "-d").find("PIE"), std::string::npos);
}

// Full RELRO: the tables of addresses are filled when it starts and read-only from then on.
TEST(Hardening, NothingIsBothWritableAndExecutableAndTablesOfAddressesAreReadOnly) {
  if (const std::string reason = why_not_hardened(); !reason.empty()) GTEST_SKIP() << reason;
  for (const fs::path& file : binary_and_plugins()) {
    SCOPED_TRACE(file);
    EXPECT_NE(line_with("(FLAGS_1)", file, "-d").find("NOW"), std::string::npos);
    EXPECT_NE(line_with("GNU_RELRO", file, "-l"), "");
    EXPECT_NE(line_with("GNU_STACK", file, "-l"), "");
    EXPECT_EQ(line_with(" RWE ", file, "-l"), "");
  }
}

TEST(Hardening, StacksAndArraysAreGuarded) {
  if (const std::string reason = why_not_hardened(); !reason.empty()) GTEST_SKIP() << reason;
  EXPECT_NE(line_with("__stack_chk_fail@", binary_path(), "--dyn-syms"), "");
  EXPECT_NE(line_with("_chk@", binary_path(), "--dyn-syms"), "")
      << "no call of libc is checked (_FORTIFY_SOURCE)";
}

// An empty place in the path is the current folder to ld.so.
TEST(Hardening, LibrariesComeFromBesideTheBinaryOrFromTheSystem) {
  if (const std::string reason = why_not_hardened(); !reason.empty()) GTEST_SKIP() << reason;
  const TempFolder folder;
  const RunResult installed =
      run_program("/usr/bin/env", {.arguments = {"cmake", "--install", build_folder().string(), "--prefix",
                                                 (folder / "p").string(), "--component", "thimble"}});
  ASSERT_EQ(installed.exit_code, 0) << installed;
  std::vector<fs::path> files = binary_and_plugins();
  files.push_back(folder / "p/bin/thimble");
  for (const fs::path& file : files)
    for (const std::string& place : search_path(file)) {
      EXPECT_TRUE(place.starts_with("$ORIGIN") || place.starts_with("/")) << file << ": '" << place << "'";
      EXPECT_FALSE(place.starts_with(build_folder().string())) << file << ": " << place;
      EXPECT_FALSE(place.starts_with(source_folder().string())) << file << ": " << place;
    }
  EXPECT_FALSE(search_path(binary_path()).empty());
}

TEST(Hardening, TheBinaryDoesNotSayWhereItWasBuilt) {
  if (const std::string reason = why_not_hardened(); !reason.empty()) GTEST_SKIP() << reason;
  const std::string bytes = text_of(binary_path());
  EXPECT_EQ(bytes.find(source_folder().string() + "/"), std::string::npos);
  EXPECT_EQ(bytes.find(build_folder().string() + "/"), std::string::npos);
  EXPECT_NE(bytes.find("src/"), std::string::npos);  // errors still say which line they are from
}

// In two folders, from the sources to the model.
TEST(FullTierReproduce, TwoQuickstartsGiveTheSameBinaryAndTheSameModel) {
  const RunResult twice = run_program(source_folder() / "cmake/reproduce", {.timeout_seconds = 3000});
  EXPECT_EQ(twice.exit_code, 0) << twice;
  EXPECT_NE(twice.out.find("the same twice: build/product/bin/thimble"), std::string::npos) << twice;
  EXPECT_NE(twice.out.find("the same twice: build/quickstart/chat.thimble"), std::string::npos) << twice;
}

}  // namespace
}  // namespace thimble::hardening_test
