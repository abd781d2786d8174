#include "report/run_data.h"

#include <algorithm>
#include <cmath>
#include <fstream>

#include "base/error.h"
#include "base/files.h"
#include "model/config_toml.h"

namespace thimble {

namespace fs = std::filesystem;

namespace {

constexpr std::uint64_t kMaxSettingsBytes = 1 << 24;
constexpr std::size_t kLastSteps = 50;
constexpr std::size_t kMostSamples = 256;  // of a follower that is bounded
constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

// Figures that were not finite are null in a file.
double number_at(const Json& event, std::string_view key) {
  const Json* value = event.find(key);
  return value && value->is_number() ? value->as_double() : kUnknown;
}

std::uint64_t count_at(const Json& event, std::string_view key) {
  const Json* value = event.find(key);
  return value && value->is_uint() ? value->as_uint() : 0;
}

std::string text_at(const Json& event, std::string_view key) {
  const Json* value = event.find(key);
  return value && value->is_string() ? value->as_string() : "";
}

Json json_in(const fs::path& path) {
  if (!fs::exists(path)) return {};
  return parse_json(read_file(path, kMaxSettingsBytes), path.string());
}

std::optional<Config> config_in(const fs::path& path) {
  if (!fs::exists(path)) return std::nullopt;
  return config_from_toml(read_file(path, kMaxSettingsBytes), path.string());
}

// Models of the run, and what was packed or exported beside them: RUN/*.thimble, RUN.thimble.
std::vector<std::pair<std::string, std::uint64_t>> models_of(const fs::path& folder) {
  std::vector<std::pair<std::string, std::uint64_t>> files;
  std::error_code error;
  const auto add = [&](const fs::path& path) {
    const std::uint64_t bytes = fs::file_size(path, error);
    if (!error) files.emplace_back(path.filename().string(), bytes);
  };
  for (const char* name : {"best.safetensors", "last.safetensors"}) add(folder / name);
  std::vector<fs::path> packed;
  for (const auto& entry : fs::directory_iterator(folder, error))
    if (entry.path().extension() == ".thimble" || entry.path().extension() == ".gguf")
      packed.push_back(entry.path());
  std::ranges::sort(packed);
  for (const fs::path& path : packed) add(path);
  fs::path beside = folder;
  add(beside += ".thimble");
  return files;
}

// Of every four points behind the first, the lowest and the highest; the `latest` stay as they are.
template <class Point>
void thin(std::vector<Point>& points, std::size_t latest) {
  constexpr std::ptrdiff_t kGroup = 4;
  const auto height = [](const Point& point) {
    return std::isfinite(point.loss) ? point.loss : std::numeric_limits<double>::max();
  };
  const auto end = points.end() - static_cast<std::ptrdiff_t>(std::min(latest, points.size() - 1));
  auto kept = points.begin() + 1, from = kept;
  for (; end - from >= kGroup; from += kGroup) {
    const auto [low, high] = std::ranges::minmax_element(from, from + kGroup, {}, height);
    const Point first = *std::min(low, high), second = *std::max(low, high);
    *kept++ = first;
    *kept++ = second;
  }
  points.erase(std::move(from, points.end(), kept), points.end());
}

// Of every two steps that have samples, the first.
void thin_samples(std::vector<SamplePoint>& samples) {
  std::int64_t step = -1;
  bool keep = false;
  std::erase_if(samples, [&](const SamplePoint& sample) {
    if (std::exchange(step, sample.step) != sample.step) keep = !keep;
    return !keep;
  });
}

}  // namespace

std::string RunData::name() const {
  return folder.filename().string();
}

std::string RunData::status() const {
  const std::string status = text_at(record, "status");
  return status.empty() ? "unfinished" : status;
}

double RunData::tokens_at(std::int64_t step) const {
  return config ? static_cast<double>(step) * static_cast<double>(config->train.batch_tokens) : 0;
}

double RunData::tokens_per_second() const {
  return seconds() > 0 ? tokens_at(steps.back().step) / seconds() : 0;
}

double RunData::final_train_loss() const {
  const std::size_t count = std::min(steps.size(), kLastSteps);
  double sum = 0;
  for (std::size_t i = steps.size() - count; i < steps.size(); ++i) sum += steps[i].loss;
  return count > 0 ? sum / static_cast<double>(count) : kUnknown;
}

const ValidationPoint* RunData::best_validation() const {
  const ValidationPoint* best = nullptr;
  for (const ValidationPoint& point : validations)
    if (!best || point.loss < best->loss) best = &point;
  return best;
}

RunFollower::RunFollower(fs::path folder, std::size_t most_points) : most_points_(most_points) {
  if (!folder.has_filename()) folder = folder.parent_path();  // "runs/a/"
  data_.folder = std::move(folder);
}

const RunData& RunFollower::refresh() {
  const fs::path& folder = data_.folder;
  if (!fs::exists(folder)) return data_;
  data_.config = config_in(folder / "config.toml");
  data_.data = json_in(folder / "data.json");
  read_metrics();
  data_.record = json_in(folder / "run.json");
  data_.files = models_of(folder);
  return data_;
}

void RunFollower::forget_metrics() {
  offset_ = 0;
  data_.start.reset();
  data_.steps.clear();
  data_.validations.clear();
  data_.samples.clear();
}

void RunFollower::read_metrics() {
  const fs::path path = data_.folder / "metrics.jsonl";
  std::error_code error;
  const std::uint64_t size = fs::file_size(path, error);
  if (error) return;
  if (size < offset_) forget_metrics();
  std::ifstream file(path, std::ios::binary);
  file.seekg(static_cast<std::streamoff>(offset_));
  bool from_the_start = offset_ == 0;
  for (std::string line;
       std::getline(file, line) && !file.eof();) {  // at the end: a line without its end yet
    if (!from_the_start && !fits(line)) {
      from_the_start = true;
      forget_metrics();
      file.seekg(0);
      continue;
    }
    take(parse_json(line, path.string()));
    offset_ += line.size() + 1;
  }
}

bool RunFollower::fits(const std::string& line) const {
  try {
    const Json event = parse_json(line, "line");
    const bool counts = text_at(event, "event") == "step";
    return !counts || data_.steps.empty() || event.at("step").as_int() > data_.steps.back().step;
  } catch (const Error&) {
    return false;
  }
}

void RunFollower::take(const Json& event) {
  const std::string kind = text_at(event, "event");
  const std::int64_t step = event.at("step").as_int();
  if (kind == "step") {
    const double seconds = number_at(event, "seconds");
    data_.steps.push_back({.step = step,
                           .loss = number_at(event, "loss"),
                           .grad_norm = number_at(event, "grad_norm"),
                           .multiplier = number_at(event, "lr_multiplier"),
                           .seconds = seconds,
                           .elapsed = data_.seconds() + (std::isfinite(seconds) ? seconds : 0)});
    if (data_.steps.size() > most_points_) thin(data_.steps, kLastSteps);
  } else if (kind == "validation") {
    const Json* best = event.find("best");
    data_.validations.push_back({.step = step,
                                 .loss = number_at(event, "val_loss"),
                                 .bits_per_byte = number_at(event, "val_bpb"),
                                 .best = best && best->is_bool() && best->as_bool(),
                                 .elapsed = data_.seconds()});
    if (data_.validations.size() > most_points_) thin(data_.validations, 1);
  } else if (kind == "sample") {
    const bool bounded = most_points_ < std::numeric_limits<std::size_t>::max();
    const bool new_step = data_.samples.empty() || data_.samples.back().step != step;
    if (bounded && new_step && data_.samples.size() >= kMostSamples) thin_samples(data_.samples);
    data_.samples.push_back(
        {.step = step, .prompt = text_at(event, "prompt"), .text = text_at(event, "text")});
  } else if (kind == "start") {
    data_.start = StartFacts{.parameters = static_cast<std::int64_t>(count_at(event, "parameters")),
                             .documents = count_at(event, "train_documents"),
                             .tokens = count_at(event, "train_tokens"),
                             .bytes = count_at(event, "train_bytes"),
                             .val_tokens = count_at(event, "val_tokens")};
  }
}

RunData read_run(const fs::path& folder) {
  check(fs::exists(folder / "metrics.jsonl"), Hint{"a run is a folder that `thimble train -o RUN` made"},
        "{} holds no run: there is no metrics.jsonl", folder.string());
  RunFollower follower(folder);
  return follower.refresh();
}

}  // namespace thimble
