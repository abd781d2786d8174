#include "golf/log.h"

#include <cerrno>
#include <utility>

#include "base/file_ops.h"

namespace thimble {

GolfLog::GolfLog(std::filesystem::path file, Print print) : path_(std::move(file)), print_(std::move(print)) {
  file_.open(path_, std::ios::app);
  if (!file_) throw FileError("open", path_, errno);
  print_(path_.string());
}

void GolfLog::line(std::string_view text) {
  print_(text);
  file_only(text);
}

void GolfLog::file_only(std::string_view text) {
  file_ << text << '\n' << std::flush;
  if (!file_) throw FileError("write", path_, errno != 0 ? errno : EIO);
}

}  // namespace thimble
