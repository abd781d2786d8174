// A folder of the test's own, gone with the test.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace thimble {

class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }

  // Makes the folders above it; returns the full path.
  std::filesystem::path write(std::string_view name, std::string_view content) const;
  std::string read(std::string_view name) const;  // throws when it is not there
  // Everything below that is no folder, hidden files too: relative and sorted.
  std::vector<std::string> files() const;

 private:
  std::filesystem::path path_;
};

}  // namespace thimble
