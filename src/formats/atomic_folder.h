// A folder of files, whole or not at all: it grows under a temporary name beside the target; commit() gives it the
// target's name. Destroyed without commit(), it leaves nothing; what a killed process left is used again.
//
//   AtomicFolder folder(ops, "models/tale", Existing::refuse, is_replaceable);
//   write_file(ops, folder.path() / "config.json", text, Existing::refuse);
//   folder.commit();
#pragma once

#include <filesystem>
#include <functional>

#include "base/files.h"

namespace thimble {

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

}  // namespace thimble
