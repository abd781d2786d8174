// A run folder contains config.toml, data.json, data/ (shards built for the run), the tokenizer,
// metrics.jsonl, run.json, checkpoints/step-00001000.safetensors, and the links last.safetensors
// and best.safetensors to two of the checkpoints.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/file_ops.h"
#include "base/json.h"
#include "base/signals.h"
#include "train/metrics.h"

namespace thimble {

class RunFolder {
 public:
  RunFolder(FileOps& ops, std::filesystem::path path) : ops_(ops), path_(std::move(path)) {}

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path last() const { return path_ / "last.safetensors"; }
  std::filesystem::path best() const { return path_ / "best.safetensors"; }
  // All checkpoints to resume from, newest first: `last`, then the step files. `last` may be
  // missing if the process was killed before that link was made.
  std::vector<std::filesystem::path> checkpoints_newest_first() const;
  // The run that contains this checkpoint: RUN/last.safetensors, RUN/best.safetensors or
  // RUN/checkpoints/step-N.safetensors. Empty for any other path.
  static std::filesystem::path run_of(const std::filesystem::path& checkpoint);
  std::filesystem::path data() const { return path_ / "data"; }
  std::filesystem::path metrics() const { return path_ / "metrics.jsonl"; }

  // Creates the folder, so that its metrics file can be opened and locked.
  void create();
  // New run: throws Error if the folder contains a run, unless `replace`, or if it contains files
  // but no run: those are not thimble's, and a run would replace some of them.
  void check_free(bool replace) const;
  // New run: deletes the files of an older run, and no others.
  void clear();
  // Resumed run: deletes files that a killed process left incomplete, and checkpoints after `step`.
  void tidy(std::int64_t step);
  // Resumed from another checkpoint than `last`: points `last` to it. If `best` is not usable,
  // points it to the checkpoint of best_step, or removes it if there is none (best_step -1: no best
  // yet).
  void rewind(const std::filesystem::path& checkpoint, std::int64_t best_step,
              const std::function<bool(const std::filesystem::path&)>& is_usable);
  void write_text(std::string_view name, std::string_view text);

  // Calls write(path) to create the step file, then points `last` (and `best` if is_best) to it.
  // Keeps the newest `keep` step files, and always this one.
  std::filesystem::path publish(std::int64_t step, bool is_best, std::int64_t keep,
                                const std::function<void(const std::filesystem::path&)>& write);

 private:
  std::filesystem::path step_file(std::int64_t step) const;
  bool contains_run() const;
  void remove_temporary_files();
  std::filesystem::path checkpoints() const { return path_ / "checkpoints"; }

  FileOps& ops_;
  std::filesystem::path path_;
};

// The folder of a run without -o: runs/PRESET-N with the smallest unused N. Making the folder
// claims the number, so that runs started at the same moment get different ones. The destructor
// removes the folder if it is empty.
class ClaimedFolder {
 public:
  ClaimedFolder(FileOps& ops, std::string_view preset);
  ~ClaimedFolder();
  ClaimedFolder(const ClaimedFolder&) = delete;
  ClaimedFolder& operator=(const ClaimedFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// How a call of `train` ended. name_of() gives the name used in files and output.
enum class RunStatus {
  completed,       // made all steps
  wallclock,       // used up max_seconds
  early_stop,      // ran out of patience
  target_reached,  // validation reached target_val_loss
  stopped,         // after stop_after steps
  interrupted,     // by a signal, after saving
  diverged,        // a loss, gradient or weight is not finite, or the loss rose far above its lowest
};
std::string_view name_of(RunStatus status);
// Returns nullopt for an unknown name: files may come from other versions.
std::optional<RunStatus> run_status_from(std::string_view name);
// True for completed, wallclock, early_stop and target_reached: the run reached its end.
bool is_finished(RunStatus status);

// run.json: when, where and with which build a run was trained, one entry per call of `train`. This
// is not stored in checkpoints because it differs between otherwise equal runs.
struct RunCall {
  std::string started, finished;  // UTC, as 2026-11-15T14:30:00Z
  std::int64_t first_step = 0, last_step = 0;
  RunStatus status = RunStatus::completed;
  double seconds = 0;  // of steps
  double tokens_per_second = 0;
};

std::string utc_now();

// How the last call recorded in `path` (run.json) used the CPU; nullopt without a readable record.
std::optional<CpuUse> recorded_cpu_use(const std::filesystem::path& path);

// The earlier calls recorded in `path`, if it is readable, followed by this call.
Json run_record(const std::filesystem::path& path, const RunCall& call);

// Removes a new run folder, or the contents of one that was empty, if the start fails. After an
// interrupt they are kept: part of the data may have been built already, and the next start
// continues with it. If two processes start in the same new folder, it belongs to the one that
// holds the lock.
class StartGuard {
 public:
  StartGuard(std::filesystem::path path, const Interrupt& interrupt)
      : path_(std::move(path)),
        interrupt_(interrupt),
        is_new_(!std::filesystem::exists(path_)),
        is_empty_(!is_new_ && std::filesystem::is_directory(path_) && std::filesystem::is_empty(path_)) {}
  ~StartGuard() {
    if (!ours_ || interrupt_.requested()) return;
    std::error_code ignored;
    if (is_new_) std::filesystem::remove_all(path_, ignored);
    for (const auto& entry : std::filesystem::directory_iterator(path_, ignored))
      std::filesystem::remove_all(entry.path(), ignored);
  }
  StartGuard(const StartGuard&) = delete;
  StartGuard& operator=(const StartGuard&) = delete;

  void locked() { ours_ = is_new_ || is_empty_; }  // this process holds the lock
  void keep() { ours_ = false; }                   // the start succeeded

 private:
  std::filesystem::path path_;
  const Interrupt& interrupt_;
  bool is_new_, is_empty_, ours_ = false;
};

}  // namespace thimble
