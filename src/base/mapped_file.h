// A file mapped into memory for reading. Opening it reads nothing; processes that map the same file
// share its pages.
//
//   const auto file = MappedFile::open("model.gguf");
//   use(file->bytes());
//   file->check_intact();  // throws if the file became shorter in the meantime
//
// Reading a page that a truncated file no longer has would end the process with SIGBUS. A handler,
// installed with the first mapping, puts zeros in place of such pages and marks the file as
// damaged, so readers compute with zeros and must call check_intact() before they use the result.
// check_intact() also compares the size, because the rest of a page after the end reads as zeros.
// Other causes of SIGBUS go to the handler that was installed before.
#pragma once

#include <atomic>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <utility>

namespace thimble {

class MappedFile {
 public:
  // Throws an Error if the file cannot be opened or mapped. An empty file has no bytes.
  static std::shared_ptr<const MappedFile> open(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::span<const std::byte> bytes() const { return bytes_; }

  void check_intact() const;  // throws an Error if the file was truncated

 private:
  explicit MappedFile(std::filesystem::path path) : path_(std::move(path)) {}

  std::filesystem::path path_;
  std::span<const std::byte> bytes_;
  int descriptor_ = -1;
  mutable std::atomic<bool> damaged_ = false;
  int place_ = -1;  // in the table of the handler
};

}  // namespace thimble
