#include "formats/atomic_folder.h"

#include <cerrno>

#include "base/error.h"

namespace thimble {

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

AtomicFolder::AtomicFolder(FileOps& ops, fs::path target, Existing existing,
                           const std::function<bool(const fs::path&)>& ours)
    : ops_(ops),
      target_(without_slash(std::move(target))),
      temporary_(beside(target_, "new")),
      old_(beside(target_, "old")) {
  naming(target_, [&] {
    put_back_old();
    check_target(existing, ours);
    claim_temporary();
  });
}

void AtomicFolder::check_target(Existing existing, const std::function<bool(const fs::path&)>& ours) {
  const PathKind kind = ops_.kind(target_);
  replaces_ = kind != PathKind::nothing;
  if (!replaces_) return;
  check(existing == Existing::replace, Hint{"name another folder with -o, or pass --force"},
        "{} exists already", target_.string());
  check(kind == PathKind::folder && (fs::is_empty(target_) || ours(target_)),
        Hint{"only a folder that holds nothing but what would be written is replaced: name another with -o"},
        "{} is something else already", target_.string());
}

AtomicFolder::~AtomicFolder() {
  if (!committed_) remove_temporary();
  ops_.close(lock_);
}

void AtomicFolder::remove_temporary() noexcept {
  try {
    remove_all(ops_, temporary_);
  } catch (...) {  // what stays is cleared by the next writer
  }
}

FileHandle AtomicFolder::locked(const fs::path& path) {
  const FileHandle folder = ops_.open_for_reading(path);
  if (ops_.try_lock(folder)) return folder;
  ops_.close(folder);
  fail(Hint{"wait until it is done, or choose another name"}, "{} is being written by someone else",
       target_.string());
}

// A kill may have come while the target had its other name.
void AtomicFolder::put_back_old() {
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

// The name is fixed: what a killed process left is cleared, instead of piling up.
void AtomicFolder::claim_temporary() {
  constexpr int kAttempts = 16;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    make_folders(ops_, temporary_);
    const FileHandle folder = locked(temporary_);
    try {
      // Between opening and locking, the writer before us may have given this very folder its final name.
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

// Afterwards the new folder has the target's name, and the old one the temporary name.
void AtomicFolder::change_places() {
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

// What is replaced is locked until it is gone: nobody else takes it for a leftover.
void AtomicFolder::replace() {
  const FileHandle old_lock = locked(target_);
  try {
    change_places();
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
        "{} has appeared meanwhile", target_.string());
  ops_.rename(temporary_, target_);
  committed_ = true;
  ops_.sync_folder(folder_of(target_));
}

}  // namespace thimble
