#include "train/run_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "base/files.h"

namespace thimble {

namespace fs = std::filesystem;

namespace {

std::vector<fs::path> files_in(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) files.push_back(entry.path());
  std::ranges::sort(files);
  return files;
}

bool is_checkpoint(const fs::path& path) {
  const std::string name = path.filename().string();
  return name.starts_with("step-") && name.ends_with(".safetensors");
}

bool is_debris(const fs::path& path) {
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

void RunFolder::create(bool replace) {
  const bool used = fs::exists(last()) || fs::exists(metrics());
  check(!used || replace,
        Hint{"go on with --resume, name another folder with -o, or start over with --force"},
        "{} holds a run already", path_.string());
  make_folders(ops_, checkpoints());
  if (!used) return;
  for (const fs::path& name : {last(), best()})
    if (fs::exists(name)) ops_.remove(name);
  for (const fs::path& file : files_in(checkpoints()))
    if (is_checkpoint(file)) ops_.remove(file);
  remove_debris();
}

void RunFolder::write_text(std::string_view name, std::string_view text) {
  write_file(ops_, path_ / name, text, Existing::replace);
}

void RunFolder::remove_debris() {
  for (const fs::path& folder : {path_, checkpoints()})
    for (const fs::path& file : files_in(folder))
      if (is_debris(file)) ops_.remove(file);
}

fs::path RunFolder::publish(std::int64_t step, bool is_best, std::int64_t keep,
                            const std::function<void(const fs::path&)>& write) {
  const fs::path path = checkpoints() / fmt::format("step-{:08}.safetensors", step);
  write(path);
  // best first: a kill between the two leaves a run that resumes from the older `last` and publishes both
  // again.
  if (is_best) publish_link(ops_, path, best());
  publish_link(ops_, path, last());
  std::vector<fs::path> older = files_in(checkpoints());
  std::erase_if(older, [](const fs::path& file) { return !is_checkpoint(file); });
  for (std::size_t i = 0; i + static_cast<std::size_t>(std::max<std::int64_t>(keep, 1)) < older.size(); ++i)
    ops_.remove(older[i]);
  return path;
}

}  // namespace thimble
