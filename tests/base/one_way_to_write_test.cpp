// All files of the product are written through base/file_ops.h, so what its tests show holds
// everywhere.
#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "support/run_binary.h"

namespace thimble {
namespace {

namespace fs = std::filesystem;

// Exceptions, each with its reason.
const std::set<std::string> kAllowed = {
    "base/file_ops.cpp",    // the implementation
    "base/files.h",         // temporary folders, removed by the process that made them
    "cli/console.cpp",      // opens /dev/null in place of a closed stream
    "cli/line_editor.cpp",  // O_APPEND by several processes; truncated lines are skipped
    "eval/check.cpp",       // /dev/null and the id maps of its processes
    "train/run_folder.h",   // removes the output of a failed start
};

TEST(OneWayToWrite, AllFilesAreWrittenThroughFileOps) {
  int seen = 0;
  for (const auto& entry : fs::recursive_directory_iterator(source_folder() / "src")) {
    const std::string extension = entry.path().extension().string();
    if (extension != ".cpp" && extension != ".h" && extension != ".cu" && extension != ".cuh") continue;
    const std::string name = fs::relative(entry.path(), source_folder() / "src").string();
    ++seen;
    if (kAllowed.contains(name)) continue;
    std::ifstream file(entry.path());
    int number = 0;
    for (std::string line; std::getline(file, line);) {
      ++number;
      for (const char* word :
           {"ofstream", "std::fstream", "fopen(", "O_WRONLY", "O_RDWR", "O_CREAT", "fs::rename(",
            "filesystem::rename(", "fs::copy", "filesystem::copy", "resize_file(", "create_director",
            "create_hard_link", "fs::remove_all(", "filesystem::remove_all(", "::unlink(", "::mkdir("})
        EXPECT_EQ(line.find(word), std::string::npos) << name << ":" << number << ": " << line;
    }
  }
  EXPECT_GT(seen, 300);
}

}  // namespace
}  // namespace thimble
