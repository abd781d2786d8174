// Files, whole or not at all.
//
// Whatever is written here appears under its name complete and on the disk, or the name keeps what it had:
// after a full disk, a kill or a loss of power at any moment. Reading is bounded: the caller says how much it
// is ready for.
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

// Sees what was written, complete, under its temporary name. What it throws keeps that from ever having its own.
using Inspector = std::function<void(const std::filesystem::path& written)>;

// A file in the making. It grows under a temporary name beside the target; commit() flushes it and gives it
// the target's name. Destroyed without commit(), it leaves nothing.
//
//   AtomicFile file(ops, "runs/a/model.safetensors", Existing::refuse);
//   file.write(header);
//   file.write(tensor_bytes);
//   file.commit();
//
// Existing::refuse: a target that exists is an error, at once and again at commit() should it have appeared
// meanwhile. Two writers of one target: the second gets an error. The target must not be a folder, a device
// or a symbolic link. Writes are not buffered: many small ones are slow.
class AtomicFile {
 public:
  AtomicFile(FileOps& ops, std::filesystem::path target, Existing existing);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  std::uint64_t bytes_written() const { return bytes_written_; }
  const std::filesystem::path& temporary() const { return temporary_; }  // where it is until commit()
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
  std::optional<FileHandle> file_;  // open and locked, until commit() is done
  bool published_ = false;          // the temporary name is no longer ours
  std::uint64_t bytes_written_ = 0;
};

// Errors of act() speak of the file or folder that the user named, not of what it is made of.
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

// Gives a finished file a second name, in one step, in place of what had that name. Costs no space: a hard
// link, or a copy where the file system has none.
void publish_link(FileOps& ops, const std::filesystem::path& existing, const std::filesystem::path& name);

// Makes the folder and those above it, as far as they are missing, and flushes them.
void make_folders(FileOps& ops, const std::filesystem::path& path);

// Takes away a file, or a folder with all that is in it; nothing there is fine, too. Links are not followed.
void remove_all(FileOps& ops, const std::filesystem::path& path);

// A file opened for reading at any place. Its size is that at opening.
class InputFile {
 public:
  explicit InputFile(std::filesystem::path path);
  ~InputFile();
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&& other) noexcept;

  const std::filesystem::path& path() const { return path_; }
  std::uint64_t size() const { return size_; }

  // Fills all of `bytes`; a file too short for that is an error that says what was expected and found.
  void read_at(std::uint64_t offset, std::span<std::byte> bytes) const;
  // As much as there is, up to bytes.size().
  std::size_t read_some_at(std::uint64_t offset, std::span<std::byte> bytes) const;

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  std::uint64_t size_ = 0;
};

// The whole file. One larger than max_bytes is an error.
std::string read_file(const std::filesystem::path& path, std::uint64_t max_bytes);

// A folder of our own for as long as this lives.
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

// A folder of files, whole or not at all: it grows under a temporary name beside the target; commit() gives it the
// target's name. Destroyed without commit(), it leaves nothing; what a killed process left is used again.
//
//   AtomicFolder folder(ops, "models/tale", Existing::refuse, is_replaceable);
//   write_file(ops, folder.path() / "config.json", text, Existing::refuse);
//   folder.commit();

class AtomicFolder {
 public:
  // Existing::replace takes away an empty folder, or one for which `ours` says that it is of the same kind: nothing
  // else, for it may be somebody's home. Two writers of one target: the second gets an error.
  AtomicFolder(FileOps& ops, std::filesystem::path target, Existing existing,
               const std::function<bool(const std::filesystem::path&)>& ours);
  ~AtomicFolder();
  AtomicFolder(const AtomicFolder&) = delete;
  AtomicFolder& operator=(const AtomicFolder&) = delete;

  const std::filesystem::path& path() const { return temporary_; }  // where to write
  void commit();

 private:
  FileHandle locked(const std::filesystem::path& path);
  void put_back_old();
  void check_target(Existing existing, const std::function<bool(const std::filesystem::path&)>& ours);
  void claim_temporary();
  void change_places();
  void publish();
  void replace();
  void remove_temporary() noexcept;

  FileOps& ops_;
  std::filesystem::path target_, temporary_;
  std::filesystem::path
      old_;               // the target's name while it is replaced, where a file system cannot exchange two
  FileHandle lock_ = {};  // of the folder in the making
  bool replaces_ = false, committed_ = false;
};

// Numbers in files, lowest byte first.

static_assert(std::endian::native == std::endian::little);

template <class T>
void append_number(std::string& out, T value) {
  static_assert(std::is_trivially_copyable_v<T>);
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

// Reads front to back; what is not there is an Error that names the file.
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
