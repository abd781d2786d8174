#include "formats/atomic_folder.h"

#include <unistd.h>

#include "base/error.h"

namespace thimble {

namespace fs = std::filesystem;

namespace {

fs::path beside(const fs::path& target, std::string_view what) {
  return folder_of(target) / fmt::format(".{}.{}-{}", target.filename().string(), what, ::getpid());
}

fs::path without_slash(fs::path path) {
  return path.has_filename() ? path : path.parent_path();
}

}  // namespace

AtomicFolder::AtomicFolder(FileOps& ops, fs::path target, Existing existing,
                           const std::function<bool(const fs::path&)>& ours)
    : ops_(ops), target_(without_slash(std::move(target))), temporary_(beside(target_, "new")) {
  const PathKind kind = ops_.kind(target_);
  if (kind != PathKind::nothing) {
    check(existing == Existing::replace, Hint{"name another folder with -o, or pass --force"},
          "{} exists already", target_.string());
    check(kind == PathKind::folder && (fs::is_empty(target_) || ours(target_)),
          Hint{"only a folder of the same kind is replaced: name another with -o"},
          "{} is something else already", target_.string());
    replaces_ = true;
  }
  make_folders(ops_, temporary_);
}

AtomicFolder::~AtomicFolder() {
  std::error_code ignored;
  if (!committed_) fs::remove_all(temporary_, ignored);
}

void AtomicFolder::commit() {
  ops_.sync_folder(temporary_);
  const fs::path old = beside(target_, "old");
  if (replaces_)
    ops_.rename(target_, old);
  else
    check(ops_.kind(target_) == PathKind::nothing, Hint{"name another folder with -o, or pass --force"},
          "{} has appeared meanwhile", target_.string());
  try {
    ops_.rename(temporary_, target_);
  } catch (...) {
    if (replaces_) ops_.rename(old, target_);
    throw;
  }
  committed_ = true;
  ops_.sync_folder(folder_of(target_));
  std::error_code ignored;
  if (replaces_) fs::remove_all(old, ignored);
}

}  // namespace thimble
