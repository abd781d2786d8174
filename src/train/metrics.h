// metrics.jsonl: one object a line for every event of a run. It is also the run's lock: whoever has it open
// trains there alone.
#pragma once

#include <cstdint>
#include <filesystem>

#include "base/file_ops.h"
#include "base/json.h"

namespace thimble {

class MetricsFile {
 public:
  // A process that has it open already is an Error. What the file holds stays until keep_until().
  MetricsFile(FileOps& ops, std::filesystem::path path);
  ~MetricsFile();
  MetricsFile(const MetricsFile&) = delete;
  MetricsFile& operator=(const MetricsFile&) = delete;

  // Keeps the lines up to and including `step` (-1: none) and drops the rest: what happened after the
  // checkpoint will happen again. A line that a kill cut short goes too. `validated` false: so does what was said of
  // that step's validation, which is still to come.
  void keep_until(std::int64_t step, bool validated = true);
  void add(const Json& event);  // {"event": "step", "step": 12, ...}
  void flush();                 // to the disk: a checkpoint's own past must not be lost

 private:
  FileOps& ops_;
  std::filesystem::path path_;
  FileHandle file_;
};

}  // namespace thimble
