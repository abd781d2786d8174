#include "base/files.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "base/error.h"

namespace thimble {

namespace {

// The name is fixed, not random, so that a file left by a killed process is reused and leftovers do
// not accumulate.
std::filesystem::path temporary_beside(const std::filesystem::path& target, std::string_view ending) {
  return folder_of(target) / fmt::format(".{}{}", target.filename().string(), ending);
}

[[noreturn]] void fail_exists(const std::filesystem::path& target) {
  fail(Hint{"choose another name, or pass --force to overwrite it"}, "{} already exists", target.string());
}

// Whether link() failed because hard links are not available here or between these two paths.
bool means_no_hard_links(int code) {
  return code == EPERM || code == EMLINK || code == EXDEV || code == ENOTSUP || code == ENOSYS;
}

void remove_if_there(FileOps& ops, const std::filesystem::path& path) {
  try {
    ops.remove(path);
  } catch (const FileError& error) {
    if (error.code() != ENOENT) throw;
  }
}

void remove_quietly(FileOps& ops, const std::filesystem::path& path) noexcept {
  try {
    ops.remove(path);
  } catch (...) {  // an error is already being thrown, and the next writer reuses a leftover file
  }
}

class OpenForReading {
 public:
  OpenForReading(FileOps& ops, const std::filesystem::path& path)
      : ops_(ops), file_(ops.open_for_reading(path)) {}
  ~OpenForReading() { ops_.close(file_); }
  OpenForReading(const OpenForReading&) = delete;
  OpenForReading& operator=(const OpenForReading&) = delete;

  std::size_t read(std::span<std::byte> bytes) { return ops_.read(file_, bytes); }
  // Sleeps until a pipe has data or ends. Files are opened without blocking.
  void wait() const {
    struct pollfd ready {
      file_.id, POLLIN, 0
    };
    ::poll(&ready, 1, -1);
  }

 private:
  FileOps& ops_;
  FileHandle file_;
};

void publish_copy(FileOps& ops, const std::filesystem::path& existing, const std::filesystem::path& name) {
  constexpr std::size_t kChunkBytes = 1 << 20;
  OpenForReading source(ops, existing);
  AtomicFile copy(ops, name, Existing::replace);
  std::vector<std::byte> chunk(kChunkBytes);
  while (const std::size_t bytes = source.read(chunk)) copy.write(std::span(chunk).first(bytes));
  copy.commit();
}

}  // namespace

AtomicFile::AtomicFile(FileOps& ops, std::filesystem::path target, Existing existing)
    : ops_(ops),
      target_(std::move(target)),
      temporary_(temporary_beside(target_, ".tmp")),
      existing_(existing) {
  check(target_.has_filename(), "cannot write {}: it does not name a file", target_.string());
  try {
    naming(target_, [&] {
      check_target();
      claim_temporary();
    });
  } catch (...) {
    discard();
    throw;
  }
}

AtomicFile::~AtomicFile() {
  discard();
}

void AtomicFile::check_target() {
  const PathKind kind = ops_.kind(target_);
  if (kind == PathKind::nothing) return;
  check(kind != PathKind::folder, "cannot write {}: it is a folder", target_.string());
  if (existing_ == Existing::refuse) fail_exists(target_);
  // Renaming over a device such as /dev/null would remove it for every user.
  check(kind == PathKind::file, Hint{"remove it, or choose another name"},
        "cannot write {}: it is a symbolic link or a device, not a regular file", target_.string());
}

void AtomicFile::claim_temporary() {
  constexpr int kAttempts = 16;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const FileHandle file = ops_.open_for_writing(temporary_);
    if (!ops_.try_lock(file)) {
      ops_.close(file);
      fail(Hint{"wait until it is done, or choose another name"}, "{} is being written by another writer",
           target_.string());
    }
    file_ = file;
    // Between open and lock, the previous writer may have renamed this very file to its final name.
    // Truncating it now would destroy the published file.
    const NameState state = ops_.name_state(file);
    if (state == NameState::only) return ops_.truncate(file, 0);
    // A writer killed between link and remove leaves the published file under both names. Remove
    // the temporary name and keep the file.
    if (state == NameState::shared) ops_.remove(temporary_);
    ops_.close(file);
    file_.reset();
  }
  fail("cannot write {}: its temporary file {} keeps changing", target_.string(), temporary_.string());
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  check(file_.has_value(), "cannot write to {} after its commit", target_.string());
  naming(target_, [&] {
    while (!bytes.empty()) {
      const std::size_t written = ops_.write(*file_, bytes);
      bytes = bytes.subspan(written);
      bytes_written_ += written;
    }
  });
}

void AtomicFile::commit() {
  check(file_.has_value(), "{} is committed twice", target_.string());
  naming(target_, [&] {
    ops_.sync(*file_);
    if (existing_ == Existing::refuse)
      publish_new();
    else
      ops_.rename(temporary_, target_);
    published_ = true;
    ops_.sync_folder(folder_of(target_));
  });
  discard();
}

// A rename would replace a target that was created since the first check; a link does not.
void AtomicFile::publish_new() {
  try {
    ops_.link(temporary_, target_);
  } catch (const FileError& error) {
    if (error.code() == EEXIST) fail_exists(target_);
    if (!means_no_hard_links(error.code())) throw;
    if (ops_.kind(target_) != PathKind::nothing) fail_exists(target_);
    return ops_.rename(temporary_, target_);
  }
  ops_.remove(temporary_);
}

// The lock is released last, so that no other writer takes the temporary name before it is removed.
void AtomicFile::discard() noexcept {
  if (!file_) return;
  if (!published_) remove_quietly(ops_, temporary_);
  ops_.close(*file_);
  file_.reset();
}

void write_file(FileOps& ops, const std::filesystem::path& path, std::span<const std::byte> bytes,
                Existing existing) {
  AtomicFile file(ops, path, existing);
  file.write(bytes);
  file.commit();
}

void write_file(FileOps& ops, const std::filesystem::path& path, std::string_view text, Existing existing) {
  write_file(ops, path, std::as_bytes(std::span(text)), existing);
}

void publish_link(FileOps& ops, const std::filesystem::path& existing, const std::filesystem::path& name) {
  const std::filesystem::path temporary = temporary_beside(name, ".link");
  naming(name, [&] {
    check(ops.kind(existing) == PathKind::file, "cannot publish {} as {}: it is not a file",
          existing.string(), name.string());
    remove_if_there(ops, temporary);
    try {
      ops.link(existing, temporary);
    } catch (const FileError& error) {
      if (!means_no_hard_links(error.code())) throw;
      return publish_copy(ops, existing, name);
    }
    try {
      ops.rename(temporary, name);
      // If `name` already was a link to this file, rename does nothing and keeps both names.
      remove_if_there(ops, temporary);
    } catch (...) {
      remove_quietly(ops, temporary);
      throw;
    }
    ops.sync_folder(folder_of(name));
  });
}

namespace {

void make_missing(FileOps& ops, const std::filesystem::path& path) {
  const PathKind kind = ops.kind(path);
  check(kind != PathKind::file, "cannot make the folder {}: a file with that name exists", path.string());
  if (kind != PathKind::nothing) return;
  const std::filesystem::path parent = folder_of(path);
  make_missing(ops, parent);
  try {
    ops.make_folder(path);
  } catch (const FileError& error) {
    if (error.code() != EEXIST) throw;  // created by another process in the meantime
  }
  ops.sync_folder(parent);
}

}  // namespace

void make_folders(FileOps& ops, const std::filesystem::path& path) {
  naming(
      path, [&] { make_missing(ops, path); }, "make the folder");
}

std::filesystem::path foreign_entry(
    const std::filesystem::path& folder,
    const std::function<bool(const std::filesystem::directory_entry&)>& ours) {
  std::filesystem::path first;
  if (!std::filesystem::is_directory(folder)) return first;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (!ours(entry) && (first.empty() || entry.path() < first)) first = entry.path();
  return first;
}

void remove_all(FileOps& ops, const std::filesystem::path& path) {
  if (ops.kind(path) == PathKind::folder) {
    std::vector<std::filesystem::path> inside;
    for (const auto& entry : std::filesystem::directory_iterator(path)) inside.push_back(entry.path());
    for (const std::filesystem::path& entry : inside) remove_all(ops, entry);
  }
  remove_if_there(ops, path);
}

InputFile::InputFile(std::filesystem::path path) : path_(std::move(path)) {
  descriptor_ = PosixFileOps().open_for_reading(path_).id;
  struct stat status;
  const int result = ::fstat(descriptor_, &status);
  if (result == 0 && S_ISREG(status.st_mode)) {
    size_ = static_cast<std::uint64_t>(status.st_size);
    return;
  }
  const int code = errno;
  ::close(descriptor_);
  if (result != 0) throw FileError("read", path_, code);
  fail("cannot read {}: it is {}, not a file", path_.string(),
       S_ISDIR(status.st_mode) ? "a folder" : "a device");
}

InputFile::~InputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

InputFile::InputFile(InputFile&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)), size_(other.size_) {}

InputFile& InputFile::operator=(InputFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(size_, other.size_);
  return *this;
}

std::size_t InputFile::read_some_at(std::uint64_t offset, std::span<std::byte> bytes) const {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t got =
        ::pread(descriptor_, bytes.data() + done, bytes.size() - done, static_cast<off_t>(offset + done));
    if (got == 0) break;
    if (got > 0)
      done += static_cast<std::size_t>(got);
    else if (errno != EINTR)
      throw FileError("read", path_, errno);
  }
  return done;
}

void InputFile::read_at(std::uint64_t offset, std::span<std::byte> bytes) const {
  // The offset may come from a damaged file, so compare it with the size first.
  const std::uint64_t there = offset <= size_ ? size_ - offset : 0;
  const std::size_t got = bytes.size() <= there ? read_some_at(offset, bytes) : there;
  check(got == bytes.size(), Hint{"the file is cut short or damaged: copy or download it again"},
        "{}: expected {} bytes at offset {}, found {} (the file has {})", path_.string(), bytes.size(),
        offset, got, size_);
}

void InputFile::read_at(std::uint64_t offset, std::span<std::byte> bytes,
                        const std::function<void(std::uint64_t)>& on_read) const {
  constexpr std::size_t kPiece = 16 << 20;
  for (std::size_t begin = 0; begin < bytes.size(); begin += kPiece) {
    const std::span piece = bytes.subspan(begin, std::min(kPiece, bytes.size() - begin));
    read_at(offset + begin, piece);
    on_read(piece.size());
  }
}

std::string read_file(const std::filesystem::path& path, std::uint64_t max_bytes) {
  const InputFile file(path);
  auto check_size = [&](std::uint64_t bytes) {
    check(bytes <= max_bytes, "{} has {} bytes, expected at most {}", path.string(), bytes, max_bytes);
  };
  check_size(file.size());
  std::string text(file.size(), '\0');
  text.resize(file.read_some_at(0, std::as_writable_bytes(std::span(text))));
  // Files in /proc report size 0, so read until the end.
  constexpr std::size_t kMoreBytes = 1 << 12;
  std::vector<std::byte> more(kMoreBytes);
  while (const std::size_t got = file.read_some_at(text.size(), more)) {
    text.append(reinterpret_cast<const char*>(more.data()), got);
    check_size(text.size());
  }
  return text;
}

bool is_pipe(const std::filesystem::path& path) {
  std::error_code ignored;
  const auto type = std::filesystem::status(path, ignored).type();
  return type == std::filesystem::file_type::fifo || type == std::filesystem::file_type::character;
}

std::string read_file_or_pipe(const std::filesystem::path& path, std::uint64_t max_bytes) {
  if (!is_pipe(path)) return read_file(path, max_bytes);
  PosixFileOps ops;
  OpenForReading pipe(ops, path);
  constexpr std::size_t kPieceBytes = 1 << 16;
  std::vector<std::byte> piece(kPieceBytes);
  std::string text;
  while (true) {
    std::size_t got = 0;
    try {
      got = pipe.read(piece);
    } catch (const FileError& error) {
      if (error.code() != EAGAIN) throw;
      pipe.wait();  // for the program that writes
      continue;
    }
    if (got == 0) return text;
    text.append(reinterpret_cast<const char*>(piece.data()), got);
    check(text.size() <= max_bytes, "{} has more than {} bytes", path.string(), max_bytes);
  }
}

namespace fs = std::filesystem;

namespace {

fs::path beside(const fs::path& target, std::string_view what) {
  return folder_of(target) / fmt::format(".{}.{}", target.filename().string(), what);
}

fs::path without_slash(fs::path path) {
  if (!path.has_filename()) path = path.parent_path();
  return path;
}

}  // namespace

AtomicFolder::AtomicFolder(FileOps& ops, fs::path target, Existing existing, const Foreign& foreign)
    : ops_(ops),
      target_(without_slash(std::move(target))),
      temporary_(beside(target_, "new")),
      old_(beside(target_, "old")) {
  naming(target_, [&] {
    restore_old();
    check_target(existing, foreign);
    claim_temporary();
  });
}

void AtomicFolder::check_target(Existing existing, const Foreign& foreign) {
  const PathKind kind = ops_.kind(target_);
  replaces_ = kind != PathKind::nothing;
  if (!replaces_) return;
  check(existing == Existing::replace, Hint{"name another folder with -o, or pass --force"},
        "{} already exists", target_.string());
  const Hint hint{"name another folder with -o: only an empty folder or an earlier output is replaced"};
  check(kind == PathKind::folder, hint, "{} exists and is not a folder", target_.string());
  const fs::path found = fs::is_empty(target_) ? fs::path() : foreign(target_);
  check(found.empty(), hint, "{} exists and is not an earlier output: it contains {}", target_.string(),
        found.filename().string());
}

AtomicFolder::~AtomicFolder() {
  if (!committed_) remove_temporary();
  ops_.close(lock_);
}

void AtomicFolder::remove_temporary() noexcept {
  try {
    remove_all(ops_, temporary_);
  } catch (...) {  // the next writer removes a leftover folder
  }
}

FileHandle AtomicFolder::locked(const fs::path& path) {
  const FileHandle folder = ops_.open_for_reading(path);
  if (ops_.try_lock(folder)) return folder;
  ops_.close(folder);
  fail(Hint{"wait until it is done, or choose another name"}, "{} is being written by another writer",
       target_.string());
}

// A process killed while it replaced the target leaves it under the name old_.
void AtomicFolder::restore_old() {
  if (ops_.kind(old_) != PathKind::folder || ops_.kind(target_) != PathKind::nothing) return;
  const FileHandle folder = locked(old_);
  try {
    ops_.rename(old_, target_);
  } catch (...) {
    ops_.close(folder);
    throw;
  }
  ops_.close(folder);
}

// The name is fixed: leftovers of a killed process are removed and do not accumulate.
void AtomicFolder::claim_temporary() {
  constexpr int kAttempts = 16;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    make_folders(ops_, temporary_);
    const FileHandle folder = locked(temporary_);
    try {
      // Between open and lock, the previous writer may have renamed this very folder to its final
      // name.
      if (ops_.name_state(folder) != NameState::moved) {
        for (const fs::directory_entry& entry : fs::directory_iterator(temporary_))
          remove_all(ops_, entry.path());
        lock_ = folder;
        return;
      }
    } catch (...) {
      ops_.close(folder);
      throw;
    }
    ops_.close(folder);
  }
  fail("cannot write {}: its temporary folder {} keeps changing", target_.string(), temporary_.string());
}

// Afterwards the new folder has the target's name and the old one has the temporary name.
void AtomicFolder::swap_folders() {
  try {
    return ops_.exchange(temporary_, target_);
  } catch (const FileError& error) {
    if (error.code() != ENOTSUP) throw;
  }
  remove_all(ops_, old_);
  ops_.rename(target_, old_);
  try {
    ops_.rename(temporary_, target_);
  } catch (...) {
    ops_.rename(old_, target_);
    throw;
  }
  ops_.rename(old_, temporary_);
}

// The old folder stays locked until it is removed, so that no other writer treats it as a leftover.
void AtomicFolder::replace() {
  const FileHandle old_lock = locked(target_);
  try {
    swap_folders();
    committed_ = true;
    ops_.sync_folder(folder_of(target_));
  } catch (...) {
    ops_.close(old_lock);
    throw;
  }
  remove_temporary();
  ops_.close(old_lock);
}

void AtomicFolder::commit() {
  naming(target_, [&] { publish(); });
}

void AtomicFolder::publish() {
  ops_.sync_folder(temporary_);
  if (replaces_) return replace();
  check(ops_.kind(target_) == PathKind::nothing, Hint{"name another folder with -o, or pass --force"},
        "{} was created while its contents were being written", target_.string());
  ops_.rename(temporary_, target_);
  committed_ = true;
  ops_.sync_folder(folder_of(target_));
}

}  // namespace thimble
