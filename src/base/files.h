// Atomic file writing and bounded reading.
//
// A write either replaces the file completely, flushed to disk, or leaves it unchanged, even if the
// disk fills up, the process is killed or power fails at any moment. Functions that read a complete
// file take a maximum size.
#pragma once

#include <unistd.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "base/error.h"
#include "base/file_ops.h"

namespace thimble {

enum class Existing { refuse, replace };

// Called with the temporary path of the complete file. If it throws, the file is never published.
using Inspector = std::function<void(const std::filesystem::path& written)>;

// Writes a file under a temporary name beside the target. commit() flushes it and renames it to the
// target. Destroyed without commit(), it removes the temporary file.
//
//   AtomicFile file(ops, "runs/a/model.safetensors", Existing::refuse);
//   file.write(header);
//   file.write(tensor_bytes);
//   file.commit();
//
// Existing::refuse: an existing target is an error, checked in the constructor and again in
// commit(). A second writer of the same target gets an error. The target must not be a folder, a
// device or a symbolic link. Writes are unbuffered, so many small ones are slow.
class AtomicFile {
 public:
  AtomicFile(FileOps& ops, std::filesystem::path target, Existing existing);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  std::uint64_t bytes_written() const { return bytes_written_; }
  const std::filesystem::path& temporary() const { return temporary_; }  // path until commit()
  void commit();

 private:
  void check_target();
  void claim_temporary();
  void publish_new();
  void discard() noexcept;

  FileOps& ops_;
  std::filesystem::path target_;
  std::filesystem::path temporary_;
  Existing existing_;
  std::optional<FileHandle> file_;  // open and locked until commit() returns
  bool published_ = false;          // the temporary name no longer belongs to this writer
  std::uint64_t bytes_written_ = 0;
};

// Runs act(). A FileError that it throws is rethrown with the path that the user named instead of a
// temporary one.
template <class Do>
void naming(const std::filesystem::path& target, Do act, std::string_view action = "write") {
  try {
    act();
  } catch (const FileError& error) {
    throw FileError(action, target, error.code(), error.where());
  }
}

void write_file(FileOps& ops, const std::filesystem::path& path, std::span<const std::byte> bytes,
                Existing existing);
void write_file(FileOps& ops, const std::filesystem::path& path, std::string_view text, Existing existing);

// Atomically gives a finished file a second name, replacing any file of that name. Uses a hard
// link, which needs no space, or a copy where the file system has no hard links.
void publish_link(FileOps& ops, const std::filesystem::path& existing, const std::filesystem::path& name);

// Creates the folder and its missing parents, and flushes them.
void make_folders(FileOps& ops, const std::filesystem::path& path);

// The first entry of the folder, by name, that `ours` does not accept: a file that this program did
// not write and must not replace. Empty if there is none or no such folder.
std::filesystem::path foreign_entry(const std::filesystem::path& folder,
                                    const std::function<bool(const std::filesystem::directory_entry&)>& ours);

// Removes a file, or a folder with its contents. A missing path is not an error. Does not follow
// links.
void remove_all(FileOps& ops, const std::filesystem::path& path);

// A file opened for reading at any offset. size() is the size when it was opened.
class InputFile {
 public:
  explicit InputFile(std::filesystem::path path);
  ~InputFile();
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&& other) noexcept;

  const std::filesystem::path& path() const { return path_; }
  std::uint64_t size() const { return size_; }

  // Fills all of `bytes`. Throws an Error with the expected and the found size if the file is too
  // short.
  void read_at(std::uint64_t offset, std::span<std::byte> bytes) const;
  // The same in pieces; `on_read` is called with the size of each.
  void read_at(std::uint64_t offset, std::span<std::byte> bytes,
               const std::function<void(std::uint64_t size)>& on_read) const;
  // Reads up to bytes.size() bytes, fewer at the end of the file. Returns the number read.
  std::size_t read_some_at(std::uint64_t offset, std::span<std::byte> bytes) const;

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  std::uint64_t size_ = 0;
};

// Reads the complete file. Throws an Error if it is larger than max_bytes.
std::string read_file(const std::filesystem::path& path, std::uint64_t max_bytes);

// Whether the path is a pipe or a character device: bash's `<(...)`, /dev/stdin, a terminal.
bool is_pipe(const std::filesystem::path& path);

// Like read_file, but a pipe or a character device is read until its end. A named pipe that no
// program has opened for writing is empty.
std::string read_file_or_pipe(const std::filesystem::path& path, std::uint64_t max_bytes);

// A new temporary folder that is removed, with its contents, by the destructor.
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

// Writes a folder of files atomically, under a temporary name beside the target. commit() renames
// it to the target. Destroyed without commit(), it removes the temporary folder. A temporary folder
// left by a killed process is reused.
//
//   AtomicFolder folder(ops, "models/tale", Existing::refuse, foreign_file);
//   write_file(ops, folder.path() / "config.json", text, Existing::refuse);
//   folder.commit();
class AtomicFolder {
 public:
  // Returns a file that makes a folder not replaceable; empty if there is none.
  using Foreign = std::function<std::filesystem::path(const std::filesystem::path& folder)>;

  // Existing::replace replaces only an empty folder or one in which `foreign` finds nothing,
  // because any other folder may contain the user's own data. A second writer of the same target
  // gets an error.
  AtomicFolder(FileOps& ops, std::filesystem::path target, Existing existing, const Foreign& foreign);
  ~AtomicFolder();
  AtomicFolder(const AtomicFolder&) = delete;
  AtomicFolder& operator=(const AtomicFolder&) = delete;

  const std::filesystem::path& path() const { return temporary_; }  // write the files here
  void commit();

 private:
  FileHandle locked(const std::filesystem::path& path);
  void restore_old();
  void check_target(Existing existing, const Foreign& foreign);
  void claim_temporary();
  void swap_folders();
  void publish();
  void replace();
  void remove_temporary() noexcept;

  FileOps& ops_;
  std::filesystem::path target_, temporary_;
  // The target's temporary name during replacement, on file systems that cannot exchange two names.
  std::filesystem::path old_;
  FileHandle lock_ = {};  // of the temporary folder
  bool replaces_ = false, committed_ = false;
};

// Numbers in files, little-endian.

static_assert(std::endian::native == std::endian::little);

template <class T>
void append_number(std::string& out, T value) {
  static_assert(std::is_trivially_copyable_v<T>);
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

// Reads bytes from front to back. Throws an Error with the name of the file if too few are left.
class ByteReader {
 public:
  ByteReader(std::span<const std::byte> bytes, std::string name) : bytes_(bytes), name_(std::move(name)) {}

  std::size_t at() const { return at_; }
  std::size_t left() const { return bytes_.size() - at_; }
  const std::string& name() const { return name_; }

  std::span<const std::byte> take(std::uint64_t count) {
    check(count <= left(), "{} ends too early: expected {} bytes at {}, found {}", name_, count, at_, left());
    const auto taken = bytes_.subspan(at_, static_cast<std::size_t>(count));
    at_ += static_cast<std::size_t>(count);
    return taken;
  }
  std::string_view text(std::uint64_t count) {
    const auto taken = take(count);
    return {reinterpret_cast<const char*>(taken.data()), taken.size()};
  }
  template <class T>
  T number() {
    T value{};
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }

 private:
  std::span<const std::byte> bytes_;
  std::string name_;
  std::size_t at_ = 0;
};

}  // namespace thimble
