#include "formats/atomic_folder.h"

#include <fcntl.h>
#include <stdio.h>

#include <cerrno>

#include "base/error.h"

namespace thimble {

namespace fs = std::filesystem;

namespace {

fs::path beside(const fs::path& target, std::string_view what) {
  return folder_of(target) / fmt::format(".{}.{}", target.filename().string(), what);
}

fs::path without_slash(fs::path path) {
  return path.has_filename() ? path : path.parent_path();
}

// false: the file system cannot do that.
bool exchanged(const fs::path& a, const fs::path& b) {
  if (::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0) return true;
  if (errno != EINVAL && errno != ENOSYS) throw FileError("rename a folder to", b, errno);
  return false;
}

}  // namespace

AtomicFolder::AtomicFolder(FileOps& ops, fs::path target, Existing existing,
                           const std::function<bool(const fs::path&)>& ours)
    : ops_(ops), target_(without_slash(std::move(target))), temporary_(beside(target_, "new")) {
  const PathKind kind = ops_.kind(target_);
  if (kind != PathKind::nothing) {
    check(existing == Existing::replace, Hint{"name another folder with -o, or pass --force"},
          "{} exists already", target_.string());
    check(
        kind == PathKind::folder && (fs::is_empty(target_) || ours(target_)),
        Hint{"only a folder that holds nothing but what would be written is replaced: name another with -o"},
        "{} is something else already", target_.string());
    replaces_ = true;
  }
  claim_temporary();
}

AtomicFolder::~AtomicFolder() {
  std::error_code ignored;
  if (!committed_) fs::remove_all(temporary_, ignored);
  ops_.close(lock_);
}

FileHandle AtomicFolder::locked(const fs::path& path) {
  const FileHandle folder = ops_.open_for_reading(path);
  if (ops_.try_lock(folder)) return folder;
  ops_.close(folder);
  fail(Hint{"wait until it is done, or choose another name"}, "{} is being written by someone else",
       target_.string());
}

// The name is fixed: what a killed process left is cleared, instead of piling up.
void AtomicFolder::claim_temporary() {
  constexpr int kAttempts = 16;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    make_folders(ops_, temporary_);
    const FileHandle folder = locked(temporary_);
    // Between opening and locking, the writer before us may have given this very folder its final name.
    if (ops_.name_state(folder) == NameState::moved) {
      ops_.close(folder);
      continue;
    }
    for (const fs::directory_entry& entry : fs::directory_iterator(temporary_)) fs::remove_all(entry.path());
    lock_ = folder;
    return;
  }
  fail("cannot write {}: its temporary folder {} keeps changing", target_.string(), temporary_.string());
}

// What is replaced gets the temporary name, and is locked until it is gone: nobody else takes it for a leftover.
void AtomicFolder::replace() {
  const FileHandle old_lock = locked(target_);
  try {
    if (!exchanged(temporary_, target_)) {
      const fs::path old = beside(target_, "old");
      fs::remove_all(old);
      ops_.rename(target_, old);
      try {
        ops_.rename(temporary_, target_);
      } catch (...) {
        ops_.rename(old, target_);
        throw;
      }
      ops_.rename(old, temporary_);
    }
    committed_ = true;
    ops_.sync_folder(folder_of(target_));
  } catch (...) {
    ops_.close(old_lock);
    throw;
  }
  std::error_code ignored;
  fs::remove_all(temporary_, ignored);
  ops_.close(old_lock);
}

void AtomicFolder::commit() {
  ops_.sync_folder(temporary_);
  if (replaces_) return replace();
  check(ops_.kind(target_) == PathKind::nothing, Hint{"name another folder with -o, or pass --force"},
        "{} has appeared meanwhile", target_.string());
  ops_.rename(temporary_, target_);
  committed_ = true;
  ops_.sync_folder(folder_of(target_));
}

}  // namespace thimble
