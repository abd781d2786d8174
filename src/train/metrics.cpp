#include "train/metrics.h"

#include <string>

#include "base/error.h"
#include "base/files.h"

namespace thimble {

namespace {

constexpr std::uint64_t kMaxMetricsBytes = std::uint64_t{1} << 32;

// How many bytes of the file are whole lines of steps up to `keep_until`.
std::uint64_t kept_bytes(const std::string& text, std::int64_t keep_until) {
  std::size_t kept = 0;
  while (kept < text.size()) {
    const std::size_t end = text.find('\n', kept);
    if (end == std::string::npos) break;
    try {
      const Json event = parse_json(std::string_view(text).substr(kept, end - kept), "metrics.jsonl");
      if (event.at("step").as_int() > keep_until) break;
    } catch (const Error&) {
      break;  // not a line of ours, or one that was cut: everything from here on goes
    }
    kept = end + 1;
  }
  return kept;
}

}  // namespace

MetricsFile::MetricsFile(FileOps& ops, std::filesystem::path path, std::int64_t keep_until) : ops_(ops) {
  const bool exists = ops.kind(path) != PathKind::nothing;
  const std::uint64_t kept =
      exists && keep_until >= 0 ? kept_bytes(read_file(path, kMaxMetricsBytes), keep_until) : 0;
  file_ = ops.open_for_writing(path);
  if (!ops.try_lock(file_)) {
    ops.close(file_);
    fail(Hint{"wait for it, or train into another folder with -o"}, "another thimble is training in {}",
         folder_of(path).string());
  }
  ops.truncate(file_, kept);
}

MetricsFile::~MetricsFile() {
  ops_.close(file_);
}

void MetricsFile::add(const Json& event) {
  const std::string line = event.dump() + "\n";
  auto rest = std::as_bytes(std::span(line));
  while (!rest.empty()) rest = rest.subspan(ops_.write(file_, rest));
}

}  // namespace thimble
