#include "base/file_ops.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <system_error>

namespace thimble {

namespace {

// Repeats a system call that a signal interrupted before it did anything.
template <class Call>
auto retry(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

template <class Result>
Result checked(Result result, std::string_view action, const std::filesystem::path& path) {
  if (result < 0) throw FileError(action, path, errno);
  return result;
}

Hint hint_for(int code, const std::filesystem::path& path) {
  const std::string folder = folder_of(path).string();
  switch (code) {
    case ENOSPC:
    case EDQUOT:
      return {"free some space or choose another folder"};
    case EACCES:
    case EPERM:
      return {fmt::format("check the permissions of {}, or choose another folder", folder)};
    case EROFS:
      return {fmt::format("{} is on a read-only file system: choose another folder", folder)};
    case ENOENT:
      if (std::error_code ignored; std::filesystem::is_directory(folder, ignored)) return {};
      return {fmt::format("the folder {} does not exist", folder)};
    case ENOTDIR:
      return {fmt::format("one part of the path {} is a file, not a folder", folder)};
    case EFBIG:
      return {"the file system or the limit on file sizes (ulimit -f) does not allow files this big"};
    case EMFILE:
    case ENFILE:
      return {"too many files are open: raise the limit (ulimit -n)"};
    case ELOOP:
      return {fmt::format("{} is a symbolic link; remove it, or choose another name", path.string())};
    default:
      return {};
  }
}

}  // namespace

FileError::FileError(std::string_view action, const std::filesystem::path& path, int code,
                     std::source_location where)
    : Error(fmt::format("cannot {} {}: {}", action, path.string(), std::generic_category().message(code)),
            hint_for(code, path), where),
      code_(code) {}

std::filesystem::path folder_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : ".";
}

void FileOps::exchange(const Path&, const Path& b) {
  throw FileError("exchange", b, ENOTSUP);
}

PathKind PosixFileOps::kind(const Path& path) {
  struct stat status;
  if (::lstat(path.c_str(), &status) != 0) {
    if (errno == ENOENT) return PathKind::nothing;
    throw FileError("access", path, errno);
  }
  if (S_ISREG(status.st_mode)) return PathKind::file;
  return S_ISDIR(status.st_mode) ? PathKind::folder : PathKind::other;
}

FileHandle PosixFileOps::open_for_writing(const Path& path) {
  // O_NONBLOCK: opening a named pipe without a reader fails instead of blocking forever.
  const int flags = O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  return {checked(retry([&] { return ::open(path.c_str(), flags, 0666); }), "write", path), path};
}

FileHandle PosixFileOps::open_for_reading(const Path& path) {
  const int flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK;
  return {checked(retry([&] { return ::open(path.c_str(), flags); }), "read", path), path};
}

bool PosixFileOps::try_lock(const FileHandle& file) noexcept {
  return retry([&] { return ::flock(file.id, LOCK_EX | LOCK_NB); }) == 0 || errno != EWOULDBLOCK;
}

NameState PosixFileOps::name_state(const FileHandle& file) {
  struct stat opened, named;
  checked(::fstat(file.id, &opened), "access", file.path);
  if (::lstat(file.path.c_str(), &named) != 0) {
    if (errno == ENOENT) return NameState::moved;
    throw FileError("access", file.path, errno);
  }
  if (opened.st_dev != named.st_dev || opened.st_ino != named.st_ino) return NameState::moved;
  return S_ISREG(opened.st_mode) && opened.st_nlink == 1 ? NameState::only : NameState::shared;
}

void PosixFileOps::truncate(const FileHandle& file, std::uint64_t bytes) {
  const auto size = static_cast<off_t>(bytes);
  checked(retry([&] { return ::ftruncate(file.id, size); }), "write", file.path);
  checked(::lseek(file.id, size, SEEK_SET), "write", file.path);
}

std::size_t PosixFileOps::write(const FileHandle& file, std::span<const std::byte> bytes) {
  const auto written = retry([&] { return ::write(file.id, bytes.data(), bytes.size()); });
  return static_cast<std::size_t>(checked(written, "write", file.path));
}

std::size_t PosixFileOps::read(const FileHandle& file, std::span<std::byte> bytes) {
  const auto got = retry([&] { return ::read(file.id, bytes.data(), bytes.size()); });
  return static_cast<std::size_t>(checked(got, "read", file.path));
}

void PosixFileOps::sync(const FileHandle& file) {
  checked(retry([&] { return ::fsync(file.id); }), "flush", file.path);
}

void PosixFileOps::close(const FileHandle& file) noexcept {
  ::close(file.id);  // not retried after EINTR: Linux has already closed the descriptor
}

void PosixFileOps::rename(const Path& from, const Path& to) {
  checked(::rename(from.c_str(), to.c_str()), "rename a file to", to);
}

void PosixFileOps::exchange(const Path& a, const Path& b) {
  if (::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0) return;
  const bool unknown = errno == EINVAL || errno == ENOSYS;
  throw FileError("exchange", b, unknown ? ENOTSUP : errno);
}

void PosixFileOps::link(const Path& existing, const Path& name) {
  checked(::link(existing.c_str(), name.c_str()), "link a file to", name);
}

void PosixFileOps::remove(const Path& path) {
  checked(::remove(path.c_str()), "remove", path);
}

void PosixFileOps::sync_folder(const Path& path) {
  const FileHandle folder = open_for_reading(path);
  const int result = retry([&] { return ::fsync(folder.id); });
  const int code = errno;
  close(folder);
  // Some file systems cannot flush a folder and report one of these errors. Nothing more can be
  // done.
  if (result != 0 && code != EINVAL && code != EOPNOTSUPP) throw FileError("flush the folder", path, code);
}

void PosixFileOps::make_folder(const Path& path) {
  checked(::mkdir(path.c_str(), 0777), "make the folder", path);
}

}  // namespace thimble
