// A folder of our own for as long as this lives.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <string>

#include "base/error.h"

namespace thimble {

class TemporaryFolder {
 public:
  TemporaryFolder() : path_((std::filesystem::temp_directory_path() / "thimble-XXXXXX").string()) {
    check(mkdtemp(path_.data()) != nullptr, "cannot make a folder in {}",
          std::filesystem::temp_directory_path().string());
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::filesystem::path path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace thimble
