// The log of a golf run: every line on the console and at the end of OUT_DIR/RUN_ID.txt, as theirs.
#pragma once

#include <filesystem>
#include <fstream>
#include <functional>
#include <string_view>

namespace thimble {

class GolfLog {
 public:
  using Print = std::function<void(std::string_view line)>;

  // Opens the file, and prints its path first of all. What is in it already stays.
  GolfLog(std::filesystem::path file, Print print);

  void line(std::string_view text);       // to both
  void file_only(std::string_view text);  // a disk that is full is an Error

 private:
  std::filesystem::path path_;
  std::ofstream file_;
  Print print_;
};

}  // namespace thimble
