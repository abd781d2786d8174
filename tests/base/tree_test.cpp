// Checks of the source tree: includes between folders, and file sizes.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "base/files.h"
#include "support/run_binary.h"
#include "support/temp_folder.h"

namespace thimble::tree_test {
namespace {

namespace fs = std::filesystem;

struct SourceFile {
  fs::path path;  // relative to src/: "ops/cuda/norm.cu"
  std::size_t lines = 0;
  std::vector<std::string> folders_included = {};  // "base" for #include "base/text.h"

  bool is_header() const { return path.extension() == ".h" || path.extension() == ".cuh"; }
  std::string folder() const { return path.begin()->string(); }
};

std::vector<SourceFile> source_files(const fs::path& root) {
  std::vector<SourceFile> files;
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    const std::string ending = entry.path().extension().string();
    if (ending != ".h" && ending != ".cpp" && ending != ".cu" && ending != ".cuh") continue;
    SourceFile file{.path = entry.path().lexically_relative(root)};
    std::ifstream text(entry.path());
    for (std::string line; std::getline(text, line); ++file.lines) {
      constexpr std::string_view kInclude = "#include \"";
      if (!line.starts_with(kInclude)) continue;
      const std::string name =
          line.substr(kInclude.size(), line.find('"', kInclude.size()) - kInclude.size());
      const std::size_t slash = name.find('/');
      file.folders_included.push_back(slash == name.npos ? "" : name.substr(0, slash));
    }
    files.push_back(std::move(file));
  }
  std::ranges::sort(files, {}, &SourceFile::path);
  return files;
}

// For each folder, the folders that its thimble_library() line names as PUBLIC or PRIVATE.
std::map<std::string, std::set<std::string>> allowed_folders(const std::string& cmake) {
  std::map<std::string, std::set<std::string>> allowed;
  constexpr std::string_view kCall = "\nthimble_library(";
  for (std::size_t at = cmake.find(kCall); at != cmake.npos; at = cmake.find(kCall, at + 1)) {
    const std::size_t begin = at + kCall.size();
    std::istringstream words(cmake.substr(begin, cmake.find(')', begin) - begin));
    std::string name, word;
    words >> name;
    auto& folders = allowed[name];
    for (bool in_libraries = false; words >> word;) {
      if (word == "PUBLIC" || word == "PRIVATE")
        in_libraries = true;
      else if (word == "PUBLIC_LIBS" || word == "LIBS")
        in_libraries = false;
      else if (in_libraries)
        folders.insert(word);
    }
  }
  return allowed;
}

// Files that include a folder which their thimble_library() line does not name. The build finds
// most of these, because each library has its own include root. It finds neither folders that are
// available through another library's PUBLIC nor any in the plugins, which are compiled with src/
// as their include root.
std::vector<std::string> stray_includes(const fs::path& source, const std::string& cmake) {
  const auto allowed = allowed_folders(cmake);
  std::vector<std::string> strays;
  for (const SourceFile& file : source_files(source)) {
    const auto of_folder = allowed.find(file.folder());
    if (of_folder == allowed.end()) continue;  // src/main.cpp
    for (const std::string& folder : file.folders_included)
      if (folder != file.folder() && !of_folder->second.contains(folder))
        strays.push_back(fmt::format("{} includes {}/", file.path.string(), folder));
  }
  return strays;
}

struct TreeCounts {
  std::size_t files = 0, lines = 0, small_headers = 0;
  std::vector<SourceFile> smallest = {};  // smallest first
  SourceFile largest = {};

  std::size_t mean() const { return files == 0 ? 0 : lines / files; }
};

constexpr std::size_t kMinMeanLines = 160, kMaxSmallHeaders = 40, kSmallHeaderLines = 30, kMaxLines = 800;

TreeCounts count(const fs::path& root) {
  TreeCounts counts;
  counts.smallest = source_files(root);
  std::ranges::stable_sort(counts.smallest, {}, &SourceFile::lines);
  counts.files = counts.smallest.size();
  for (const SourceFile& file : counts.smallest) {
    counts.lines += file.lines;
    if (file.is_header() && file.lines < kSmallHeaderLines) ++counts.small_headers;
  }
  if (counts.files > 0) counts.largest = counts.smallest.back();
  return counts;
}

// The problems of the tree and what to do about them; empty if there are none.
std::string problems_of(const TreeCounts& counts) {
  std::string problems;
  if (counts.mean() < kMinMeanLines)
    problems +=
        fmt::format("files have {} lines on average, expected {} or more; ", counts.mean(), kMinMeanLines);
  if (counts.small_headers > kMaxSmallHeaders)
    problems += fmt::format("{} headers have less than {} lines, expected {} at most; ", counts.small_headers,
                            kSmallHeaderLines, kMaxSmallHeaders);
  if (!problems.empty()) {
    problems += "merge files whose concept is larger than the file. The smallest are:";
    for (std::size_t i = 0; i < std::min<std::size_t>(counts.files, 20); ++i)
      problems += fmt::format("\n  {:>3} src/{}", counts.smallest[i].lines, counts.smallest[i].path.string());
  }
  if (counts.largest.lines > kMaxLines)
    problems += fmt::format("\nsrc/{} has {} lines, expected {} at most: divide it",
                            counts.largest.path.string(), counts.largest.lines, kMaxLines);
  return problems;
}

TEST(Tree, FoldersIncludeOnlyTheirDeclaredDependencies) {
  const std::string cmake = read_file(source_folder() / "CMakeLists.txt", 1 << 20);
  ASSERT_GE(allowed_folders(cmake).size(), 20u);
  for (const std::string& stray : stray_includes(source_folder() / "src", cmake))
    ADD_FAILURE() << stray
                  << ", which the thimble_library() line of its folder in CMakeLists.txt does not name";
}

TEST(Tree, FindsUndeclaredIncludesInPlugins) {
  TempFolder folder;
  folder.write("base/a.h", "#include <string>\n");
  folder.write("ops/b.h", "#include \"base/a.h\"\n");
  folder.write("ops/cuda/c.cu", "#include \"ops/b.h\"\n#include \"train/loop.h\"\n");
  folder.write("model/d.cpp", "#include \"ops/b.h\"\n");
  folder.write("main.cpp", "#include \"ops/b.h\"\n");
  EXPECT_EQ(stray_includes(folder.path(),
                           "\nthimble_library(base)\nthimble_library(ops PUBLIC base LIBS dnnl)\n"
                           "thimble_library(model PUBLIC_LIBS ops)\n"),
            (std::vector<std::string>{"model/d.cpp includes ops/", "ops/cuda/c.cu includes train/"}));
}

TEST(Tree, FilesAreNeitherTooSmallNorTooLarge) {
  const TreeCounts counts = count(source_folder() / "src");
  const std::string summary = fmt::format(
      "{} files, {} lines, {} lines per file, {} headers under {} lines, the largest file is {} ({})",
      counts.files, counts.lines, counts.mean(), counts.small_headers, kSmallHeaderLines,
      counts.largest.path.string(), counts.largest.lines);
  std::printf("src: %s\n", summary.c_str());
  EXPECT_GT(counts.files, 100u);
  const std::string problems = problems_of(counts);
  EXPECT_TRUE(problems.empty()) << problems;
}

TEST(Tree, NamesTheFilesToMerge) {
  TempFolder folder;
  folder.write("a/small.h", "one\ntwo\n");
  folder.write("a/large.cpp", std::string(900, '\n'));
  TreeCounts counts = count(folder.path());
  EXPECT_EQ(problems_of(counts), "\nsrc/a/large.cpp has 900 lines, expected 800 at most: divide it");
  counts.small_headers = 41;
  EXPECT_NE(problems_of(counts).find("41 headers have less than 30 lines"), std::string::npos);
  EXPECT_NE(problems_of(counts).find("\n    2 src/a/small.h"), std::string::npos);
}

}  // namespace
}  // namespace thimble::tree_test
