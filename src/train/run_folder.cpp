#include "train/run_folder.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <ctime>
#include <fstream>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "base/machine.h"
#include "base/parallel.h"

namespace thimble {

namespace fs = std::filesystem;

namespace {

bool comes_before(const fs::path& a, const fs::path& b) {
  const std::string one = a.filename().string(), other = b.filename().string();
  return std::pair(one.size(), one) < std::pair(other.size(), other);
}

std::vector<fs::path> files_in(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) files.push_back(entry.path());
  std::ranges::sort(files);
  return files;
}

constexpr std::string_view kStepStart = "step-", kStepEnd = ".safetensors";

// Whether this is the name of a checkpoint: "step-", at least eight digits, ".safetensors".
bool is_step_name(std::string_view name) {
  if (!name.starts_with(kStepStart) || !name.ends_with(kStepEnd)) return false;
  name.remove_prefix(kStepStart.size());
  name.remove_suffix(std::min(name.size(), kStepEnd.size()));
  return name.size() >= 8 && name.find_first_not_of("0123456789") == name.npos;
}

// Checkpoints sorted by step. Step numbers have at least eight digits, so comes_before compares the
// length first.
std::vector<fs::path> step_files(const fs::path& folder) {
  std::vector<fs::path> files = files_in(folder);
  std::erase_if(files, [](const fs::path& path) { return !is_step_name(path.filename().string()); });
  std::ranges::sort(files, comes_before);
  return files;
}

// NAME for the temporary file .NAME.tmp or .NAME.link; nullopt for any other name.
std::optional<std::string_view> name_behind(std::string_view name) {
  if (!name.starts_with(".")) return std::nullopt;
  name.remove_prefix(1);
  for (const std::string_view ending : {".tmp", ".link"})
    if (name.ends_with(ending)) return name.substr(0, name.size() - ending.size());
  return std::nullopt;
}

// Whether training writes a file of this name into the run's folder.
bool is_run_file(std::string_view name) {
  constexpr std::string_view kFiles[] = {"best.safetensors", "config.toml",    "data.json",
                                         "last.safetensors", "metrics.jsonl",  "report.html",
                                         "run.json",         "tokenizer.json", "tokenizer.model"};
  return std::ranges::count(kFiles, name) > 0 || name.starts_with("events.out.tfevents.");
}

bool is_temporary(const fs::path& path) {
  const std::string name = path.filename().string();
  const auto target = name_behind(name);
  return target && (is_run_file(*target) || is_step_name(*target));
}

// An empty folder may be left by a process that was killed while it made the run's folders.
bool is_empty_folder(const fs::directory_entry& entry) {
  return entry.symlink_status().type() == fs::file_type::directory && fs::is_empty(entry.path());
}

// Whether this is a metrics.jsonl of ours; other programs use the name too. It is the first file of
// a run. A killed process may leave it empty or with the beginning of an event.
bool is_our_metrics(const fs::path& path) {
  if (!fs::is_regular_file(path)) return false;
  std::array<char, 10> bytes{};
  const std::size_t size = InputFile(path).read_some_at(0, std::as_writable_bytes(std::span(bytes)));
  return std::string_view(R"({"event":")").starts_with(std::string_view(bytes.data(), size));
}

}  // namespace

void RunFolder::create() {
  make_folders(ops_, checkpoints());
}

bool RunFolder::contains_run() const {
  return !step_files(checkpoints()).empty() || is_our_metrics(metrics());
}

void RunFolder::check_free(bool replace) const {
  const bool begun = contains_run();
  const fs::path foreign =
      foreign_entry(path_, [&](const fs::directory_entry& entry) { return begun || is_empty_folder(entry); });
  check(foreign.empty(), Hint{"choose a new or empty folder with -o"},
        "{} is not a run: it contains {}, which training did not write", path_.string(),
        foreign.filename().string());
  check(replace || (step_files(checkpoints()).empty() && !fs::exists(last())),
        Hint{"continue it with --resume, choose another folder with -o, or replace it with --force"},
        "{} already contains a run", path_.string());
}

std::vector<fs::path> RunFolder::checkpoints_newest_first() const {
  std::vector<fs::path> files = step_files(checkpoints());
  std::ranges::reverse(files);
  if (!fs::exists(last())) return files;
  std::erase_if(files, [&](const fs::path& file) { return fs::equivalent(file, last()); });
  files.insert(files.begin(), last());
  return files;
}

fs::path RunFolder::run_of(const fs::path& checkpoint) {
  const fs::path folder = folder_of(checkpoint);
  const std::string name = checkpoint.filename().string();
  if (name == "last.safetensors" || name == "best.safetensors") return folder;
  if (!is_step_name(name)) return {};
  if (folder.filename() == "checkpoints") return folder_of(folder);
  return fs::weakly_canonical(folder).filename() == "checkpoints" ? folder / ".." : fs::path();
}

void RunFolder::clear() {
  for (const fs::path& name : {last(), best(), path_ / "run.json", path_ / "report.html"})
    if (fs::exists(name)) ops_.remove(name);
  for (const fs::path& file : files_in(path_))
    if (file.filename().string().starts_with("events.out.tfevents.")) ops_.remove(file);
  for (const fs::path& file : step_files(checkpoints())) ops_.remove(file);
  remove_temporary_files();
}

void RunFolder::tidy(std::int64_t step) {
  remove_temporary_files();
  for (const fs::path& file : step_files(checkpoints()))
    if (comes_before(step_file(step), file)) ops_.remove(file);
}

void RunFolder::rewind(const fs::path& checkpoint, std::int64_t best_step,
                       const std::function<bool(const fs::path&)>& is_usable) {
  if (checkpoint != last()) publish_link(ops_, checkpoint, last());
  if (!fs::exists(best()) || is_usable(best())) return;
  const fs::path replacement = step_file(std::max<std::int64_t>(best_step, 0));
  if (best_step >= 0 && fs::exists(replacement) && is_usable(replacement))
    publish_link(ops_, replacement, best());
  else
    ops_.remove(best());
}

fs::path RunFolder::step_file(std::int64_t step) const {
  return checkpoints() / fmt::format("step-{:08}.safetensors", step);
}

void RunFolder::write_text(std::string_view name, std::string_view text) {
  write_file(ops_, path_ / name, text, Existing::replace);
}

void RunFolder::remove_temporary_files() {
  for (const fs::path& folder : {path_, checkpoints()})
    for (const fs::path& file : files_in(folder))
      if (is_temporary(file)) ops_.remove(file);
}

fs::path RunFolder::publish(std::int64_t step, bool is_best, std::int64_t keep,
                            const std::function<void(const fs::path&)>& write) {
  const fs::path path = step_file(step);
  write(path);
  // `best` first: after a kill between the two, the run resumes from the older `last` and publishes
  // both again.
  if (is_best) publish_link(ops_, path, best());
  publish_link(ops_, path, last());
  const std::vector<fs::path> files = step_files(checkpoints());
  const std::size_t kept = static_cast<std::size_t>(std::max<std::int64_t>(keep, 1));
  for (std::size_t i = 0; i + kept < files.size(); ++i)
    if (files[i] != path) ops_.remove(files[i]);
  return path;
}

ClaimedFolder::ClaimedFolder(FileOps& ops, std::string_view preset) {
  make_folders(ops, "runs");
  for (int n = 1; path_.empty(); ++n) {
    const fs::path path = fs::path("runs") / fmt::format("{}-{}", preset, n);
    try {
      ops.make_folder(path);
      path_ = path;
    } catch (const FileError& error) {
      if (error.code() != EEXIST) throw;
    }
  }
}

ClaimedFolder::~ClaimedFolder() {
  std::error_code not_empty;
  fs::remove(path_, not_empty);
}

namespace {

struct StatusName {
  RunStatus status;
  std::string_view name;
};
constexpr StatusName kStatusNames[] = {
    {RunStatus::completed, "completed"},
    {RunStatus::wallclock, "wallclock"},
    {RunStatus::target_reached, "target_reached"},
    {RunStatus::early_stop, "early_stop"},
    {RunStatus::stopped, "stopped"},
    {RunStatus::interrupted, "interrupted"},
    {RunStatus::diverged, "diverged"},
};

}  // namespace

std::string_view name_of(RunStatus status) {
  return std::ranges::find(kStatusNames, status, &StatusName::status)->name;
}

std::optional<RunStatus> run_status_from(std::string_view name) {
  const auto* const found = std::ranges::find(kStatusNames, name, &StatusName::name);
  if (found == std::end(kStatusNames)) return std::nullopt;
  return found->status;
}

bool is_finished(RunStatus status) {
  return status == RunStatus::completed || status == RunStatus::wallclock ||
         status == RunStatus::early_stop || status == RunStatus::target_reached;
}

namespace {

constexpr std::uint64_t kMaxRecordBytes = 1 << 24;

std::string host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

Json earlier_calls(const std::filesystem::path& path) {
  try {
    return parse_json(read_file(path, kMaxRecordBytes), path.string()).at("calls");
  } catch (const Error&) {
    return Json::array();  // missing or damaged; not a reason to fail the run
  }
}

// Words of the command line of this process. The name of the program is shortened to its last part.
Json command_words() {
  Json words = Json::array();
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  for (std::string word; std::getline(file, word, '\0');)
    words.push(words.size() == 0 ? fs::path(word).filename().string() : word);
  return words;
}

Json machine_record() {
  const Machine machine = probe_machine();
  return Json::object()
      .set("name", host_name())
      .set("cpu", machine.cpu_model)
      .set("cpu_level", std::string(cpu_level_name(cpu_level())))
      .set("threads", max_threads())
      .set("memory_bytes", machine.memory_bytes);
}

}  // namespace

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  std::array<char, 32> text{};
  const std::size_t size = std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return {text.data(), size};
}

Json run_record(const std::filesystem::path& path, const RunCall& call) {
  Json calls = Json::array();
  const Json earlier = earlier_calls(path);
  for (const Json& old : earlier.as_array()) calls.push(old);
  calls.push(Json::object()
                 .set("command", command_words())
                 .set("started", call.started)
                 .set("finished", call.finished)
                 .set("first_step", call.first_step)
                 .set("last_step", call.last_step)
                 .set("status", std::string(name_of(call.status)))
                 .set("seconds", call.seconds)
                 .set("tokens_per_second", call.tokens_per_second)
                 .set("host", machine_record())
                 .set("version", version())
                 .set("build", build_type())
                 .set("compiler", compiler()));
  return Json::object()
      .set("status", std::string(name_of(call.status)))
      .set("steps", call.last_step)
      .set("calls", calls);
}

std::optional<CpuUse> recorded_cpu_use(const std::filesystem::path& path) {
  const Json calls = earlier_calls(path);
  if (calls.size() == 0) return std::nullopt;
  return CpuUse::from(calls.as_array().back().at("host"));
}

}  // namespace thimble
