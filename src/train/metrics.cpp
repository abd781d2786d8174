#include "train/metrics.h"

#include <string>

#include "base/error.h"
#include "base/files.h"
#include "train/metrics_reader.h"

namespace thimble {

namespace {

bool is_of_validation(const MetricsReader& reader) {
  if (reader.step_line()) return false;
  const std::string event = reader.event().at("event").as_string();
  return event == "validation" || event == "sample";
}

// How many bytes of the file are whole lines of steps up to `last_step`.
std::uint64_t kept_bytes(const std::filesystem::path& path, std::int64_t last_step, bool validated) {
  std::uint64_t kept = 0;
  for (MetricsReader reader(path); reader.next(); kept = reader.place().offset) {
    try {
      if (reader.step() > last_step) break;
      if (!validated && reader.step() == last_step && is_of_validation(reader)) break;
    } catch (const Error&) {
      break;  // not a line of ours, or one that was cut: everything from here on goes
    }
  }
  return kept;
}

}  // namespace

MetricsFile::MetricsFile(FileOps& ops, std::filesystem::path path)
    : ops_(ops), path_(std::move(path)), file_(ops.open_for_writing(path_)) {
  if (ops.try_lock(file_)) return;
  ops.close(file_);
  fail(Hint{"wait for it, or train into another folder with -o"}, "another thimble is training in {}",
       folder_of(path_).string());
}

MetricsFile::~MetricsFile() {
  ops_.close(file_);
}

void MetricsFile::keep_until(std::int64_t step, bool validated) {
  ops_.truncate(file_, step < 0 ? 0 : kept_bytes(path_, step, validated));
}

void MetricsFile::flush() {
  ops_.sync(file_);
}

void MetricsFile::add(const Json& event) {
  const std::string line = event.dump() + "\n";
  auto rest = std::as_bytes(std::span(line));
  while (!rest.empty()) rest = rest.subspan(ops_.write(file_, rest));
}

}  // namespace thimble
