// A disk that keeps nothing: for ranks that train but do not write. What is there can be read.
#pragma once

#include "base/file_ops.h"

namespace thimble {

class NowhereFileOps final : public FileOps {
 public:
  PathKind kind(const Path& path) override { return disk_.kind(path); }
  FileHandle open_for_writing(const Path& path) override { return {-1, path}; }
  FileHandle open_for_reading(const Path& path) override { return disk_.open_for_reading(path); }
  bool try_lock(const FileHandle&) noexcept override { return true; }
  NameState name_state(const FileHandle&) override { return NameState::only; }
  void truncate(const FileHandle&, std::uint64_t) override {}
  std::size_t write(const FileHandle&, std::span<const std::byte> bytes) override { return bytes.size(); }
  std::size_t read(const FileHandle& file, std::span<std::byte> bytes) override {
    return disk_.read(file, bytes);
  }
  void sync(const FileHandle&) override {}
  void close(const FileHandle& file) noexcept override {
    if (file.id >= 0) disk_.close(file);
  }
  void rename(const Path&, const Path&) override {}
  void link(const Path&, const Path&) override {}
  void remove(const Path&) override {}
  void sync_folder(const Path&) override {}
  void make_folder(const Path&) override {}

 private:
  PosixFileOps disk_;
};

}  // namespace thimble
