#include "sweep/runner.h"

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <map>
#include <memory>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/digest.h"
#include "base/error.h"
#include "base/files.h"
#include "base/text.h"
#include "report/run_data.h"
#include "train/run_folder.h"

namespace thimble {

namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxOutputBytes = std::uint64_t{1} << 26;
constexpr double kPollSeconds = 0.02, kProgressSeconds = 1, kLockSeconds = 60;
constexpr int kExitDiverged = 3;

// A process of this program. Its own process group keeps Ctrl-C away from it, because a second
// signal would end it before it has saved; it ends with this process.
class Process {
 public:
  // Replaces `out` and appends to `err`.
  Process(FileOps& ops, const std::vector<std::string>& words, const fs::path& out, const fs::path& err) {
    std::vector<std::string> all = {"thimble"};
    all.insert(all.end(), words.begin(), words.end());
    std::vector<char*> arguments;
    for (std::string& word : all) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    const FileHandle input = ops.open_for_reading("/dev/null"), output = ops.open_for_writing(out),
                     errors = ops.open_for_writing(err);
    ops.truncate(output, 0);
    ops.truncate(errors, fs::file_size(err));  // moves to the end
    const pid_t parent = getpid();
    id_ = fork();
    if (id_ == 0) {  // only async-signal-safe calls from here on
      setpgid(0, 0);
      prctl(PR_SET_PDEATHSIG, SIGTERM);
      if (getppid() != parent) _exit(kExitInterrupted);
      dup2(input.id, STDIN_FILENO);
      dup2(output.id, STDOUT_FILENO);
      dup2(errors.id, STDERR_FILENO);
      execv("/proc/self/exe", arguments.data());
      _exit(127);
    }
    const int code = errno;
    for (const FileHandle* file : {&input, &output, &errors}) ops.close(*file);
    check(id_ > 0, "cannot start a process: {}", std::error_code(code, std::generic_category()).message());
  }
  ~Process() {
    if (id_ <= 0 || ended_) return;
    stop();  // it saves its state
    wait(true);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  // The exit code, or 128 + the signal that ended it; nullopt while it runs.
  std::optional<int> exit_code() {
    if (!ended_) wait(false);
    return ended_;
  }
  void stop() {
    if (!ended_ && !std::exchange(stopped_, true)) ::kill(id_, SIGTERM);
  }

 private:
  void wait(bool block) {
    int status = 0;
    pid_t got = 0;
    while ((got = waitpid(id_, &status, block ? 0 : WNOHANG)) < 0 && errno == EINTR) {
    }
    if (got == id_) ended_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    if (got < 0) ended_ = 127;
  }

  pid_t id_ = -1;
  std::optional<int> ended_;
  bool stopped_ = false;
};

void pause() {
  std::this_thread::sleep_for(std::chrono::duration<double>(kPollSeconds));
}

// The last error that a process wrote to its log, from byte `from` on, without "error: ".
std::string error_in(const fs::path& log, std::uint64_t from = 0) {
  std::string text, error;
  try {
    text = read_file(log, kMaxOutputBytes);
  } catch (const Error&) {
    return "";
  }
  constexpr std::string_view kStart = "error: ", kHint = "hint: ";
  for (auto rest = std::string_view(text).substr(std::min<std::uint64_t>(from, text.size()));
       !rest.empty();) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = rest.substr(0, end);
    if (line.starts_with(kStart)) error = line.substr(kStart.size());
    if (line.starts_with(kHint) && !error.empty()) error += fmt::format(" ({})", line.substr(kHint.size()));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return error;
}

constexpr std::uint64_t kMaxSettingsBytes = 1 << 24;

Json number(double value) {
  return std::isfinite(value) ? Json(value) : Json();
}

Json json_in(const fs::path& path) {
  return parse_json(read_file(path, kMaxOutputBytes), path.string());
}

// The validation of the best checkpoint. The loss of an untrained model is never the best, even if
// training only made it worse.
const ValidationPoint* best_of(const RunData& data) {
  const ValidationPoint* best = nullptr;
  for (const ValidationPoint& point : data.validations)
    if (point.best) best = &point;
  return best || data.validations.empty() ? best : &data.validations.back();
}

// One run of the sweep while it is worked on: trained, then scored, then packed.
class ActiveRun {
 public:
  ActiveRun(const SweepRun& run, const SweepOptions& options, FileOps& ops)
      : run_(run),
        options_(options),
        ops_(ops),
        folder_(options.folder / "runs" / run.id),
        follower_(folder_, 2) {
    const bool exists = fs::exists(folder_);
    if (exists) wait_for_lock();
    if (exists && has_ended())
      after_training();
    else
      train(exists);
  }

  const SweepRun& run() const { return run_; }
  bool is_done() const { return !process_; }
  bool was_interrupted() const { return interrupted_; }
  void stop() {
    if (process_) process_->stop();
  }

  // Starts the next stage if one has ended.
  void advance() {
    const std::optional<int> code = process_->exit_code();
    if (!code) return;
    process_.reset();
    try {
      after_stage(*code);
    } catch (const Error& error) {  // such as a damaged file; the other runs go on
      error_ = error.what();
    }
  }

  // Completed steps, and the number of steps of the run; 0: unknown.
  std::pair<std::int64_t, std::int64_t> progress() {
    try {
      const RunData& data = follower_.refresh();
      return {data.steps.empty() ? 0 : data.steps.back().step, data.config ? data.config->train.steps : 0};
    } catch (const Error&) {  // the file is being replaced
      return {0, 0};
    }
  }

  // The line of a run that is done.
  Json line() const {
    Json line = run_.facts;
    const RunData data = read_or_empty();
    line.set("status", error_.empty() ? data.status().name : std::string(kFailed));
    if (!error_.empty()) line.set("error", error_);
    add_figures(data, line);
    for (const Json* more : {&scored_, &packed_})
      for (const auto& [key, value] : more->as_object()) line.set(key, value);
    line.set("device", options_.device).set("threads", options_.threads).set("run", "runs/" + run_.id);
    add_machine(data, line);
    return line.set("command", command());
  }

 private:
  enum class Stage { train, score, pack };

  fs::path log() const { return options_.folder / "logs" / (run_.id + ".log"); }
  fs::path out() const { return options_.folder / "logs" / (run_.id + ".json"); }

  void start(Stage stage, std::vector<std::string> words) {
    words.insert(words.end(),
                 {"--device", options_.device, "--threads", std::to_string(options_.threads), "--json"});
    stage_ = stage;
    log_bytes_ = fs::exists(log()) ? fs::file_size(log()) : 0;
    process_ = std::make_unique<Process>(ops_, words, out(), log());
  }

  void train(bool exists) {
    std::vector<std::string> words = {"train"};
    if (exists && !RunFolder(ops_, folder_).checkpoints_newest_first().empty()) {
      words.insert(words.end(), {"--resume", folder_.string()});
    } else {
      words.insert(words.end(), run_.train.begin(), run_.train.end());
      words.insert(words.end(), {"-o", folder_.string()});
    }
    words.insert(words.end(), {"--samples", "0"});
    start(Stage::train, words);
  }

  void after_stage(int code) {
    if (code == kExitInterrupted || code == 128 + SIGTERM) {
      interrupted_ = true;
    } else if (code != 0 && !(stage_ == Stage::train && code == kExitDiverged)) {
      error_ = error_in(log(), log_bytes_);
      if (error_.empty())
        error_ = code > 128 ? fmt::format("ended by signal {}", code - 128)
                            : fmt::format("ended with exit code {}", code);
    } else if (stage_ == Stage::train) {
      after_training();
    } else if (stage_ == Stage::score) {
      after_scoring();
    } else {
      after_packing();
    }
  }

  void after_training() {
    const RunData data = read_or_empty();
    if (data.status().status == RunStatus::diverged) return;
    if (data.validations.empty()) return after_scoring();
    start(Stage::score, {"eval", model().string(), "--scores", (options_.folder / scores()).string(),
                         "--force", "--val-tokens", std::to_string(run_.val_tokens)});
  }

  void after_scoring() {
    if (stage_ == Stage::score) {
      const Json score = json_in(out());
      scored_.set("scored_bpb", score.at("val_bpb")).set("scored_loss", score.at("val_loss"));
      scored_.set("scores", scores().string());
    }
    if (!options_.pack) return;
    std::vector<std::string> words = {
        "pack", model().string(), "-o", (folder_ / "model.thimble").string(), "--allow-over", "--force"};
    if (!run_.held_out.empty())
      words.insert(words.end(),
                   {"--data", run_.held_out.string(), "--val-tokens", std::to_string(run_.val_tokens)});
    start(Stage::pack, words);
  }

  void after_packing() {
    const Json packed = json_in(out());
    const Json* golf = packed.at("golf").find("bytes");
    packed_.set("bytes", packed.at("bytes")).set("golf_bytes", golf ? *golf : Json());
    for (const auto& [key, from] :
         {std::pair{"unpacked_bpb", "val_bpb_before"}, std::pair{"packed_bpb", "val_bpb_after"}})
      if (const Json* value = packed.find(from)) packed_.set(key, *value);
  }

  fs::path scores() const { return fs::path("scores") / (run_.id + ".jsonl"); }

  // The checkpoint that is scored and packed.
  fs::path model() const {
    const RunFolder run(ops_, folder_);
    return options_.score == SweepScore::best && fs::exists(run.best()) ? run.best() : run.last();
  }

  void add_figures(const RunData& data, Json& line) const {
    const bool finished = data.status().status && is_finished(*data.status().status) && error_.empty();
    line.set("steps", data.steps.empty() ? 0 : data.steps.back().step);
    if (data.config) {
      line.set("batch_tokens", data.config->train.batch_tokens);
      line.set("tokens", static_cast<std::int64_t>(data.tokens_at(line.at("steps").as_int())));
      line.set("config_digest", digest_of(read_file(folder_ / "config.toml", kMaxSettingsBytes)).hex());
    }
    if (data.start) line.set("parameters", data.start->parameters);
    line.set("train_loss", number(data.final_train_loss()));
    const ValidationPoint* const last =
        finished && !data.validations.empty() ? &data.validations.back() : nullptr;
    line.set("val_bpb", last ? number(last->bits_per_byte) : Json())
        .set("val_loss", last ? number(last->loss) : Json());
    const ValidationPoint* const best = best_of(data);
    line.set("best_bpb", best ? number(best->bits_per_byte) : Json())
        .set("best_loss", best ? number(best->loss) : Json());
    line.set("best_step", best ? Json(best->step) : Json());
    line.set("seconds", data.seconds()).set("tokens_per_second", data.tokens_per_second());
  }

  static void add_machine(const RunData& data, Json& line) {
    const Json* calls = data.record.find("calls");
    if (!calls || calls->size() == 0) return;
    const Json& call = calls->as_array().back();
    for (const auto& [from, to] : {std::pair{"host", "machine"}, std::pair{"version", "version"}})
      if (const Json* value = call.find(from)) line.set(to, *value);
  }

  std::string command() const {
    std::vector<std::string> words = {"thimble", "train"};
    for (const std::string& word : run_.train) words.push_back(shell_word(word));
    words.insert(words.end(), {"-o", shell_word(folder_.string()), "--device", options_.device, "--threads",
                               std::to_string(options_.threads)});
    return joined(words, " ");
  }

  // The processes of a sweep that was killed save their state before they end.
  void wait_for_lock() {
    if (!fs::exists(folder_ / "metrics.jsonl")) return;
    for (const double end = seconds_now() + kLockSeconds; seconds_now() < end; pause()) {
      const FileHandle file = ops_.open_for_writing(folder_ / "metrics.jsonl");
      const bool locked = ops_.try_lock(file);
      ops_.close(file);
      if (locked) return;
    }
  }

  bool has_ended() const {
    const auto status = read_or_empty().status().status;
    return status && (is_finished(*status) || *status == RunStatus::diverged);
  }

  RunData read_or_empty() const {
    try {
      return read_run(folder_);
    } catch (const Error&) {  // a run that failed to start has no files
      return {};
    }
  }

  const SweepRun& run_;
  const SweepOptions& options_;
  FileOps& ops_;
  fs::path folder_;
  RunFollower follower_;
  Stage stage_ = Stage::train;
  std::unique_ptr<Process> process_;
  std::uint64_t log_bytes_ = 0;  // of earlier processes
  bool interrupted_ = false;
  std::string error_;
  Json scored_ = Json::object(), packed_ = Json::object();
};

// The progress of all runs, in steps that this call makes.
class SweepProgress {
 public:
  SweepProgress(const std::vector<SweepRun>& runs, const ProgressOutput& output)
      : runs_(runs.size()), bar_(output, "sweep", "steps", 0) {
    for (const SweepRun& run : runs) work_[run.id].of = run.steps;
  }

  void update(const std::vector<std::unique_ptr<ActiveRun>>& active) {
    if (seconds_now() - updated_ < kProgressSeconds) return;
    updated_ = seconds_now();
    std::vector<std::string> notes = {fmt::format("{} of {} runs", done_, runs_)};
    for (const auto& run : active) {
      Work& work = work_[run->run().id];
      const auto [steps, of] = run->progress();
      if (!std::exchange(work.begun, true)) work.before = steps;
      work.steps = steps;
      if (of > 0) work.of = of;
      notes.push_back(run->run().id);
    }
    std::int64_t made = 0, total = 0;
    for (const auto& [id, work] : work_) {
      made += std::max<std::int64_t>(0, work.steps - work.before);
      total += std::max<std::int64_t>(0, work.of - work.before);
    }
    bar_.expect(static_cast<std::uint64_t>(std::max(made, total)));
    bar_.update(static_cast<std::uint64_t>(made), notes);
  }
  void done(const std::string& id) {
    work_[id].steps = work_[id].of;
    ++done_;
    bar_.clear();  // a line about the run follows
  }

 private:
  struct Work {
    std::int64_t before = 0, steps = 0, of = 0;  // steps made by an earlier call, until now, in all
    bool begun = false;
  };
  std::map<std::string, Work> work_;
  std::size_t runs_, done_ = 0;
  double updated_ = 0;
  ProgressBar bar_;
};

// Records a run that has ended and says how.
void record(const ActiveRun& run, std::size_t left, ResultsFile& results, SweepCounts& counts,
            const Log& log) {
  const Json line = run.line();
  const SweepResult& result = results.add(line);
  if (const Json* error = line.find("error")) {
    ++counts.failed;
    log.warning("{} failed: {}", run.run().id, error->as_string());
  } else if (!result.finished()) {
    ++counts.diverged;
    log.warning("{} {} at step {}", run.run().id, result.status, result.steps);
  } else {
    ++counts.finished;
    const double bits = result.bits_per_byte();
    log.info("{}: {}; {} left", run.run().id,
             std::isfinite(bits) ? fmt::format("{:.4f} bits per byte", bits) : "trained without validation",
             left);
  }
}

}  // namespace

SweepCounts run_sweep(const std::vector<SweepRun>& runs, const SweepOptions& options, ResultsFile& results,
                      FileOps& ops, const Log& log, const ProgressOutput& progress,
                      const Interrupt& interrupt) {
  for (const char* name : {"runs", "scores", "logs"}) make_folders(ops, options.folder / name);
  SweepCounts counts;
  SweepProgress bar(runs, progress);
  std::vector<std::unique_ptr<ActiveRun>> active;
  std::size_t next = 0, left = runs.size();
  while (!active.empty() || (next < runs.size() && !interrupt.requested())) {
    while (next < runs.size() && std::cmp_less(active.size(), options.jobs) && !interrupt.requested())
      active.push_back(std::make_unique<ActiveRun>(runs[next++], options, ops));
    for (const auto& run : active) {
      if (interrupt.requested()) run->stop();
      if (!run->is_done()) run->advance();
      if (!run->is_done() || run->was_interrupted()) continue;
      bar.done(run->run().id);
      record(*run, --left, results, counts, log);
    }
    std::erase_if(active, [](const auto& run) { return run->is_done(); });
    bar.update(active);
    pause();
  }
  counts.interrupted = left > 0;
  return counts;
}

std::string output_of(const std::vector<std::string>& words, const Interrupt& interrupt) {
  const TemporaryFolder folder;
  PosixFileOps ops;
  Process process(ops, words, folder.path() / "out", folder.path() / "err");
  std::optional<int> code;
  for (; !(code = process.exit_code()); pause())
    if (interrupt.requested()) process.stop();
  interrupt.throw_if_interrupted();
  if (*code != 0) fail("{}", error_in(folder.path() / "err"));
  return read_file(folder.path() / "out", kMaxOutputBytes);
}

}  // namespace thimble
