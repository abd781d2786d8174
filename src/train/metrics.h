// metrics.jsonl: one object a line for every event of a run.
#pragma once

#include <cstdint>
#include <filesystem>

#include "base/file_ops.h"
#include "base/json.h"

namespace thimble {

class MetricsFile {
 public:
  // Keeps the lines up to and including step `keep_until` (-1: none) and drops the rest: what happened after
  // the checkpoint will happen again. A line that a kill cut short goes too.
  MetricsFile(FileOps& ops, std::filesystem::path path, std::int64_t keep_until);
  ~MetricsFile();
  MetricsFile(const MetricsFile&) = delete;
  MetricsFile& operator=(const MetricsFile&) = delete;

  void add(const Json& event);  // {"event": "step", "step": 12, ...}

 private:
  FileOps& ops_;
  FileHandle file_;
};

}  // namespace thimble
