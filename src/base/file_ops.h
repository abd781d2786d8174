// The file operations that all writing goes through. Tests replace them with a simulated disk that
// becomes full, fails, or loses power after any operation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <source_location>
#include <span>
#include <string_view>

#include "base/error.h"
#include "base/signals.h"

namespace thimble {

// "cannot write runs/a/model: No space left on device", with a hint where one is known.
class FileError : public Error {
 public:
  FileError(std::string_view action, const std::filesystem::path& path, int code,
            std::source_location where = std::source_location::current());

  int code() const { return code_; }  // an errno value

 private:
  int code_;
};

struct FileHandle {
  int id = -1;
  std::filesystem::path path;  // the path it was opened with; used in messages and by name_state
};

enum class PathKind { nothing, file, folder, other };  // symbolic links are `other`

// What the path of an open file refers to now.
enum class NameState {
  moved,   // another file, or none
  shared,  // this file, which also has other names (or is not a regular file)
  only,    // this file, which has no other name
};

// Every method that is not noexcept throws a FileError on failure.
class FileOps {
 public:
  using Path = std::filesystem::path;

  virtual ~FileOps() = default;

  virtual PathKind kind(const Path& path) = 0;

  // Opens the file, or creates it. Existing contents are kept; writing starts at byte 0. Does not
  // follow symbolic links.
  virtual FileHandle open_for_writing(const Path& path) = 0;
  virtual FileHandle open_for_reading(const Path& path) = 0;
  // Takes an exclusive lock that lasts until the file is closed. Returns false if another handle
  // holds it, in this process or another. On a file system without locks it returns true, because
  // writing without a lock is better than not writing.
  virtual bool try_lock(const FileHandle& file) noexcept = 0;
  virtual NameState name_state(const FileHandle& file) = 0;
  // Truncates or zero-extends the file to this size. Writing continues at its end.
  virtual void truncate(const FileHandle& file, std::uint64_t bytes) = 0;
  // Returns the number of bytes written: at least 1, possibly fewer than requested.
  virtual std::size_t write(const FileHandle& file, std::span<const std::byte> bytes) = 0;
  // Reads from where the last read ended. Returns the number of bytes read, 0 at the end of the
  // file.
  virtual std::size_t read(const FileHandle& file, std::span<std::byte> bytes) = 0;
  virtual void sync(const FileHandle& file) = 0;
  // Ignores errors: data that must be on the disk has been synced before.
  virtual void close(const FileHandle& file) noexcept = 0;

  virtual void rename(const Path& from, const Path& to) = 0;      // replaces `to`
  virtual void exchange(const Path& a, const Path& b);            // atomic, or ENOTSUP
  virtual void link(const Path& existing, const Path& name) = 0;  // EEXIST if `name` exists
  virtual void remove(const Path& path) = 0;                      // a file, or an empty folder
  virtual void sync_folder(const Path& path) = 0;
  virtual void make_folder(const Path& path) = 0;  // EEXIST if it exists
};

class PosixFileOps final : public FileOps {
 public:
  PathKind kind(const Path& path) override;
  FileHandle open_for_writing(const Path& path) override;
  FileHandle open_for_reading(const Path& path) override;
  bool try_lock(const FileHandle& file) noexcept override;
  NameState name_state(const FileHandle& file) override;
  void truncate(const FileHandle& file, std::uint64_t bytes) override;
  std::size_t write(const FileHandle& file, std::span<const std::byte> bytes) override;
  std::size_t read(const FileHandle& file, std::span<std::byte> bytes) override;
  void sync(const FileHandle& file) override;
  void close(const FileHandle& file) noexcept override;
  void rename(const Path& from, const Path& to) override;
  void exchange(const Path& a, const Path& b) override;
  void link(const Path& existing, const Path& name) override;
  void remove(const Path& path) override;
  void sync_folder(const Path& path) override;
  void make_folder(const Path& path) override;
};

// The folder that contains the path; "." for a bare name.
std::filesystem::path folder_of(const std::filesystem::path& path);

// Makes writing interruptible: after Ctrl-C the next write throws Interrupted, and the caller
// discards the incomplete file.
//
//   const Interrupt interrupt;
//   PosixFileOps disk;
//   InterruptibleFileOps ops(disk, interrupt);
//   write_model(ops, path, Existing::refuse, model, DType::f32);
class InterruptibleFileOps final : public FileOps {
 public:
  // `ops` and `interrupt` must outlive this object.
  InterruptibleFileOps(FileOps& ops, const Interrupt& interrupt) : ops_(ops), interrupt_(interrupt) {}

  std::size_t write(const FileHandle& file, std::span<const std::byte> bytes) override {
    interrupt_.throw_if_interrupted();
    return ops_.write(file, bytes);
  }

  // Not interruptible: these are quick, or must not stop halfway.
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

// Discards everything written, for ranks that train but do not write. Reading uses the real disk.
class DiscardingFileOps final : public FileOps {
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
