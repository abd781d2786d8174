// A start that fails takes away the folder that it made. One that was interrupted leaves it: half the data may have
// been built, and the next start goes on from there. Of two starts that both found none, the one that has locked the
// folder has made it; the other must leave it alone.
#pragma once

#include <filesystem>
#include <utility>

#include "base/interrupt.h"

namespace thimble {

class NewFolder {
 public:
  NewFolder(std::filesystem::path path, const Interrupt& interrupt)
      : path_(std::move(path)), interrupt_(interrupt), is_new_(!std::filesystem::exists(path_)) {}
  ~NewFolder() {
    std::error_code ignored;
    if (ours_ && !interrupt_.asked()) std::filesystem::remove_all(path_, ignored);
  }
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;

  void locked() { ours_ = is_new_; }  // nobody else is in it
  void keep() { ours_ = false; }      // the start went well

 private:
  std::filesystem::path path_;
  const Interrupt& interrupt_;
  bool is_new_, ours_ = false;
};

}  // namespace thimble
