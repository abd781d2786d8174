#include "train/run_folder.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <fstream>
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

// Checkpoints sorted by step. Step numbers have at least eight digits, so comes_before compares the
// length first.
std::vector<fs::path> step_files(const fs::path& folder) {
  std::vector<fs::path> files = files_in(folder);
  std::erase_if(files, [](const fs::path& path) {
    const std::string name = path.filename().string();
    return !name.starts_with("step-") || !name.ends_with(".safetensors");
  });
  std::ranges::sort(files, comes_before);
  return files;
}

bool is_temporary(const fs::path& path) {
  const std::string name = path.filename().string();
  return name.starts_with(".") && (name.ends_with(".tmp") || name.ends_with(".link"));
}

}  // namespace

fs::path RunFolder::next_free(std::string_view preset) {
  for (int n = 1;; ++n) {
    fs::path path = fs::path("runs") / fmt::format("{}-{}", preset, n);
    if (!fs::exists(path)) return path;
  }
}

void RunFolder::create() {
  make_folders(ops_, checkpoints());
}

void RunFolder::check_free(bool replace) const {
  check(replace || (step_files(checkpoints()).empty() && !fs::exists(last())),
        Hint{"continue it with --resume, choose another folder with -o, or replace it with --force"},
        "{} already contains a run", path_.string());
}

fs::path RunFolder::newest() const {
  const std::vector<fs::path> steps = step_files(checkpoints());
  return fs::exists(last()) || steps.empty() ? last() : steps.back();
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

namespace {

struct StatusName {
  RunStatus status;
  std::string_view name;
};
constexpr StatusName kStatusNames[] = {
    {RunStatus::completed, "completed"},     {RunStatus::wallclock, "wallclock"},
    {RunStatus::early_stop, "early_stop"},   {RunStatus::stopped, "stopped"},
    {RunStatus::interrupted, "interrupted"}, {RunStatus::diverged, "diverged"},
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
  return status == RunStatus::completed || status == RunStatus::wallclock || status == RunStatus::early_stop;
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

std::string machine_note(const std::filesystem::path& path) {
  const Json calls = earlier_calls(path);
  if (calls.size() == 0) return "";
  const Json& host = calls.as_array().back().at("host");
  const Json *level = host.find("cpu_level"), *threads = host.find("threads");
  if (!level || !threads) return "";
  const auto text = [](std::int64_t count, std::string_view level) {
    return fmt::format("{} thread{} at CPU level {}", count, count == 1 ? "" : "s", level);
  };
  const std::string before = text(threads->as_int(), level->as_string());
  const std::string now = text(max_threads(), cpu_level_name(cpu_level()));
  if (before == now) return "";
  return fmt::format(
      "this run was trained with {} and resumes with {}: the last bits of its results will differ", before,
      now);
}

}  // namespace thimble
