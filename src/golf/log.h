// The log of a golf run: every line on the console and at the end of OUT_DIR/RUN_ID.txt, as theirs.
#pragma once

#include <filesystem>
#include <functional>
#include <string_view>

#include "base/file_ops.h"

namespace thimble {

class GolfLog {
 public:
  using Print = std::function<void(std::string_view line)>;

  // Opens the file, and prints its path first of all. What is in it already stays.
  GolfLog(FileOps& ops, const std::filesystem::path& file, Print print);
  ~GolfLog();
  GolfLog(const GolfLog&) = delete;
  GolfLog& operator=(const GolfLog&) = delete;

  void line(std::string_view text);       // to both
  void file_only(std::string_view text);  // a disk that is full is an Error

 private:
  FileOps& ops_;
  FileHandle file_;
  Print print_;
};

}  // namespace thimble
