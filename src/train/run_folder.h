// A run's folder: config.toml, data.json, data/ (shards that were made for the run), the tokenizer, metrics.jsonl,
// run.json, checkpoints/step-00001000.safetensors, and the names last.safetensors and best.safetensors, which are
// links to two of those.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string_view>

#include "base/file_ops.h"

namespace thimble {

class RunFolder {
 public:
  RunFolder(FileOps& ops, std::filesystem::path path) : ops_(ops), path_(std::move(path)) {}

  // runs/PRESET-N with the first N that is free.
  static std::filesystem::path next_free(std::string_view preset);

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path last() const { return path_ / "last.safetensors"; }
  std::filesystem::path best() const { return path_ / "best.safetensors"; }
  // The checkpoint to go on from: `last` or, where a kill came before it got its name, the newest there is.
  std::filesystem::path newest() const;
  std::filesystem::path data() const { return path_ / "data"; }
  std::filesystem::path metrics() const { return path_ / "metrics.jsonl"; }

  // Makes the folder, so that its metrics file can be opened and locked.
  void create();
  // A new run: the folder must not hold one already, unless `replace`.
  void check_free(bool replace) const;
  // A new run: takes away what an older one left.
  void clear();
  // An old run: takes away what a killed process left half-written, and checkpoints later than `step`.
  void tidy(std::int64_t step);
  void write_text(std::string_view name, std::string_view text);

  // write(path) makes the file; then `last`, and if it is the best so far `best`, point to it. The newest
  // `keep` step files stay, this one always.
  std::filesystem::path publish(std::int64_t step, bool is_best, std::int64_t keep,
                                const std::function<void(const std::filesystem::path&)>& write);

 private:
  std::filesystem::path step_file(std::int64_t step) const;
  void remove_debris();
  std::filesystem::path checkpoints() const { return path_ / "checkpoints"; }

  FileOps& ops_;
  std::filesystem::path path_;
};

}  // namespace thimble
