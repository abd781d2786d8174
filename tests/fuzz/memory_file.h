// A file in memory (memfd) with a path, for readers that open files by path.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "base/error.h"
#include "targets.h"

namespace thimble {

class MemoryFile {
 public:
  explicit MemoryFile(FuzzBytes bytes) : descriptor_(memfd_create("fuzz", MFD_CLOEXEC)) {
    check(descriptor_ >= 0, "cannot create a file in memory");
    while (!bytes.empty()) {
      const ssize_t count = write(descriptor_, bytes.data(), bytes.size());
      check(count > 0, "cannot write to a file in memory");
      bytes = bytes.subspan(static_cast<std::size_t>(count));
    }
  }
  ~MemoryFile() { close(descriptor_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  std::filesystem::path path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

 private:
  int descriptor_;
};

}  // namespace thimble
