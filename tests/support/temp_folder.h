// A temporary folder that is removed at the end of the test.
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

  // Creates missing parent folders. Returns the full path.
  std::filesystem::path write(std::string_view name, std::string_view content) const;
  std::string read(std::string_view name) const;  // throws if it does not exist
  // All files below the folder, including hidden ones, as sorted relative paths.
  std::vector<std::string> files() const;

 private:
  std::filesystem::path path_;
};

}  // namespace thimble
