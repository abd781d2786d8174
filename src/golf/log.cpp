#include "golf/log.h"

#include <string>
#include <utility>

namespace thimble {

GolfLog::GolfLog(FileOps& ops, const std::filesystem::path& file, Print print)
    : ops_(ops), file_(ops.open_for_writing(file)), print_(std::move(print)) {
  try {
    ops_.truncate(file_, std::filesystem::file_size(file));  // writing goes on at the end
    print_(file.string());
  } catch (...) {
    ops_.close(file_);
    throw;
  }
}

GolfLog::~GolfLog() {
  ops_.close(file_);
}

void GolfLog::line(std::string_view text) {
  print_(text);
  file_only(text);
}

void GolfLog::file_only(std::string_view text) {
  const std::string line = std::string(text) + '\n';
  auto rest = std::as_bytes(std::span(line));
  while (!rest.empty()) rest = rest.subspan(ops_.write(file_, rest));
}

}  // namespace thimble
