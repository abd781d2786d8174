// Hardening of the binary and its plugins: read-only address tables, no writable and executable
// memory, no library folders that others can write to, no build paths.
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

// The value of a setting in the CMake cache of the tested build.
std::string cmake_setting(const std::string& name) {
  std::ifstream cache(build_folder() / "CMakeCache.txt");
  for (std::string line; std::getline(cache, line);)
    if (line.starts_with(name + ":")) return line.substr(line.find('=') + 1);
  return "";
}

// "" if the build is hardened (see cmake/Harden.cmake).
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

// The lines of readelf's output that contain `word`.
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

// The folders where ld.so searches libraries of `file`, from RPATH or RUNPATH.
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

TEST(Hardening, BinaryIsPositionIndependent) {
  if (const std::string reason = why_not_hardened(); !reason.empty()) GTEST_SKIP() << reason;
  EXPECT_NE(line_with("Type:", binary_path(), "-h").find("DYN"), std::string::npos);
  EXPECT_NE(line_with("(FLAGS_1)", binary_path(), "-d").find("PIE"), std::string::npos);
}

// Full RELRO: the address tables are filled at start-up and read-only afterwards.
TEST(Hardening, MemoryIsNotWritableAndExecutableAndAddressTablesAreReadOnly) {
  if (const std::string reason = why_not_hardened(); !reason.empty()) GTEST_SKIP() << reason;
  for (const fs::path& file : binary_and_plugins()) {
    SCOPED_TRACE(file);
    EXPECT_NE(line_with("(FLAGS_1)", file, "-d").find("NOW"), std::string::npos);
    EXPECT_NE(line_with("GNU_RELRO", file, "-l"), "");
    EXPECT_NE(line_with("GNU_STACK", file, "-l"), "");
    EXPECT_EQ(line_with(" RWE ", file, "-l"), "");
  }
}

TEST(Hardening, HasStackProtectorAndFortifiedCalls) {
  if (const std::string reason = why_not_hardened(); !reason.empty()) GTEST_SKIP() << reason;
  EXPECT_NE(line_with("__stack_chk_fail@", binary_path(), "--dyn-syms"), "");
  EXPECT_NE(line_with("_chk@", binary_path(), "--dyn-syms"), "")
      << "no call of libc is checked (_FORTIFY_SOURCE)";
}

// ld.so reads an empty entry of the search path as the current folder.
TEST(Hardening, LibrarySearchPathHasNoUnsafeFolders) {
  if (const std::string reason = why_not_hardened(); !reason.empty()) GTEST_SKIP() << reason;
  const TempFolder folder;
  const RunResult installed =
      run_program("/usr/bin/env", {.arguments = {"cmake", "--install", build_folder().string(), "--prefix",
                                                 (folder / "p").string(), "--component", "thimble"}});
  ASSERT_EQ(installed.exit_code, 0) << installed;
  std::vector<fs::path> files = binary_and_plugins();
  files.push_back(folder / "p/bin/thimble");
  for (const fs::path& file : files)
    for (const std::string& entry : search_path(file)) {
      EXPECT_TRUE(entry.starts_with("$ORIGIN") || entry.starts_with("/")) << file << ": '" << entry << "'";
      EXPECT_FALSE(entry.starts_with(build_folder().string())) << file << ": " << entry;
      EXPECT_FALSE(entry.starts_with(source_folder().string())) << file << ": " << entry;
    }
  EXPECT_FALSE(search_path(binary_path()).empty());
}

TEST(Hardening, BinaryContainsNoBuildPaths) {
  if (const std::string reason = why_not_hardened(); !reason.empty()) GTEST_SKIP() << reason;
  const std::string bytes = text_of(binary_path());
  EXPECT_EQ(bytes.find(source_folder().string() + "/"), std::string::npos);
  EXPECT_EQ(bytes.find(build_folder().string() + "/"), std::string::npos);
  EXPECT_NE(bytes.find("src/"), std::string::npos);  // errors still have relative source locations
}

// Builds and runs quickstart in two folders.
TEST(FullTierReproduce, TwoQuickstartsGiveIdenticalBinariesAndModels) {
  const RunResult result = run_program(source_folder() / "cmake/reproduce", {.timeout_seconds = 3000});
  EXPECT_EQ(result.exit_code, 0) << result;
  EXPECT_NE(result.out.find("identical: build/product/bin/thimble"), std::string::npos) << result;
  EXPECT_NE(result.out.find("identical: build/quickstart/chat.thimble"), std::string::npos) << result;
}

}  // namespace
}  // namespace thimble::hardening_test
