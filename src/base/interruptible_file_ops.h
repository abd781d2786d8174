// Files whose writing Ctrl-C ends: the next piece of bytes throws Interrupted, and what was half written goes.
//
//   const Interrupt interrupt;
//   PosixFileOps disk;
//   InterruptibleFileOps ops(disk, interrupt);
//   write_model(ops, path, Existing::refuse, model, DType::f32);
#pragma once

#include "base/file_ops.h"
#include "base/interrupt.h"

namespace thimble {

class InterruptibleFileOps final : public FileOps {
 public:
  // Both must outlive this.
  InterruptibleFileOps(FileOps& ops, const Interrupt& interrupt) : ops_(ops), interrupt_(interrupt) {}

  std::size_t write(const FileHandle& file, std::span<const std::byte> bytes) override {
    interrupt_.throw_if_asked();
    return ops_.write(file, bytes);
  }

  // Everything else is quick, or must not end halfway.
  PathKind kind(const Path& path) override { return ops_.kind(path); }
  FileHandle open_for_writing(const Path& path) override { return ops_.open_for_writing(path); }
  FileHandle open_for_reading(const Path& path) override { return ops_.open_for_reading(path); }
  bool try_lock(const FileHandle& file) noexcept override { return ops_.try_lock(file); }
  NameState name_state(const FileHandle& file) override { return ops_.name_state(file); }
  void truncate(const FileHandle& file, std::uint64_t bytes) override { ops_.truncate(file, bytes); }
  std::size_t read(const FileHandle& file, std::span<std::byte> bytes) override {
    return ops_.read(file, bytes);
  }
  void sync(const FileHandle& file) override { ops_.sync(file); }
  void close(const FileHandle& file) noexcept override { ops_.close(file); }
  void rename(const Path& from, const Path& to) override { ops_.rename(from, to); }
  void exchange(const Path& a, const Path& b) override { ops_.exchange(a, b); }
  void link(const Path& existing, const Path& name) override { ops_.link(existing, name); }
  void remove(const Path& path) override { ops_.remove(path); }
  void sync_folder(const Path& path) override { ops_.sync_folder(path); }
  void make_folder(const Path& path) override { ops_.make_folder(path); }

 private:
  FileOps& ops_;
  const Interrupt& interrupt_;
};

}  // namespace thimble
