// A run's folder: config.toml, data.json, data/ (shards that were made for the run), the tokenizer, metrics.jsonl,
// run.json, checkpoints/step-00001000.safetensors, and the names last.safetensors and best.safetensors, which are
// links to two of those.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/file_ops.h"
#include "base/json.h"
#include "base/signals.h"

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

// How a call of `train` ended. Files and people know it by its name.
enum class RunStatus {
  completed,    // made all steps
  wallclock,    // used up max_seconds
  early_stop,   // ran out of patience
  stopped,      // after stop_after steps
  interrupted,  // by a signal; what it was doing is saved
  diverged,     // a loss, gradient or weight is not finite
};
std::string_view name_of(RunStatus status);
// Nothing for a name that is none of them: files may come from other versions.
std::optional<RunStatus> run_status_from(std::string_view name);
// It came to an end of its own: there is nothing to resume.
bool is_finished(RunStatus status);

// run.json: when, where and with what a run was made, one entry per call of `train`. All that must not be in a
// checkpoint, because it differs between equal runs.
struct RunCall {
  std::string started, finished;  // UTC, as 2026-11-15T14:30:00Z
  std::int64_t first_step = 0, last_step = 0;
  RunStatus status = RunStatus::completed;
  double seconds = 0;  // of steps
  double tokens_per_second = 0;
};

std::string utc_now();

// What differs between this machine and the one of the last call in `path`, where it changes the last bits of results:
// threads and the CPU level. Empty: nothing, or there is no such record.
std::string machine_note(const std::filesystem::path& path);

// The record of earlier calls in `path`, if there is one that can be read, and of this one behind them.
Json run_record(const std::filesystem::path& path, const RunCall& call);

// A start that fails takes away the folder that it made. One that was interrupted leaves it: half the data may have
// been built, and the next start goes on from there. Of two starts that both found none, the one that has locked the
// folder has made it; the other must leave it alone.
class StartGuard {
 public:
  StartGuard(std::filesystem::path path, const Interrupt& interrupt)
      : path_(std::move(path)), interrupt_(interrupt), is_new_(!std::filesystem::exists(path_)) {}
  ~StartGuard() {
    std::error_code ignored;
    if (ours_ && !interrupt_.asked()) std::filesystem::remove_all(path_, ignored);
  }
  StartGuard(const StartGuard&) = delete;
  StartGuard& operator=(const StartGuard&) = delete;

  void locked() { ours_ = is_new_; }  // nobody else is in it
  void keep() { ours_ = false; }      // the start went well

 private:
  std::filesystem::path path_;
  const Interrupt& interrupt_;
  bool is_new_, ours_ = false;
};

}  // namespace thimble
