#include "support/temp_folder.h"

#include <stdlib.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <iterator>
#include <system_error>

#include "base/error.h"

namespace thimble {

TempFolder::TempFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "thimble-test-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) throw std::system_error(errno, std::generic_category(), name);
  path_ = name;
}

TempFolder::~TempFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::filesystem::path TempFolder::write(std::string_view name, std::string_view content) const {
  const std::filesystem::path path = path_ / name;
  std::filesystem::create_directories(path.parent_path());
  std::ofstream file(path, std::ios::binary);
  file << content << std::flush;
  check(file.good(), "cannot write {}", path.string());
  return path;
}

std::string TempFolder::read(std::string_view name) const {
  std::ifstream file(path_ / name, std::ios::binary);
  check(file.good(), "cannot read {}", (path_ / name).string());
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<std::string> TempFolder::files() const {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(path_))
    if (entry.is_symlink() || !entry.is_directory())
      files.push_back(entry.path().lexically_relative(path_).string());
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace thimble
