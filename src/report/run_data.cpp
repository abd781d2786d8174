#include "report/run_data.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "base/files.h"
#include "base/text.h"
#include "config/toml.h"

namespace thimble {

namespace fs = std::filesystem;

namespace {

constexpr std::uint64_t kMaxSettingsBytes = 1 << 24;
constexpr std::size_t kLastSteps = 50;
constexpr std::size_t kMaxSampledSteps = 64, kMaxTextsPerStep = 16;
constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

// Non-finite values are stored as null.
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

// Checkpoints of the run, and artifacts and exports: RUN/*.thimble, RUN/*.gguf, RUN.thimble.
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

StepFigures figures_in(const StepLine& line) {
  return {
      .loss = line.loss, .grad_norm = line.grad_norm, .multiplier = line.multiplier, .seconds = line.seconds};
}

StepFigures figures_in(const Json& event) {
  return {.loss = number_at(event, "loss"),
          .grad_norm = number_at(event, "grad_norm"),
          .multiplier = number_at(event, "lr_multiplier"),
          .seconds = number_at(event, "seconds")};
}

// Applies `choose` to each pair of values.
template <class Choose>
StepFigures combine(const StepFigures& a, const StepFigures& b, Choose choose) {
  return {.loss = choose(a.loss, b.loss),
          .grad_norm = choose(a.grad_norm, b.grad_norm),
          .multiplier = choose(a.multiplier, b.multiplier),
          .seconds = choose(a.seconds, b.seconds)};
}

}  // namespace

StepPoint merged(const StepPoint& a, const StepPoint& b) {
  const auto m = static_cast<double>(a.steps), n = static_cast<double>(b.steps);
  return {.step = b.step,
          .steps = a.steps + b.steps,
          .mean = combine(a.mean, b.mean,
                          [&](double x, double y) {
                            if (std::isnan(x) || std::isnan(y)) return std::isnan(x) ? y : x;
                            return x + (y - x) * (n / (m + n));
                          }),
          // fmin and fmax ignore a NaN operand.
          .low = combine(a.low, b.low, [](double x, double y) { return std::fmin(x, y); }),
          .high = combine(a.high, b.high, [](double x, double y) { return std::fmax(x, y); }),
          .elapsed = b.elapsed};
}

ValidationPoint merged(const ValidationPoint& a, const ValidationPoint& b) {
  return b.loss < a.loss || std::isnan(a.loss) ? b : a;
}

SampledStep merged(const SampledStep& a, const SampledStep& /*b*/) {
  return a;
}

std::string RunData::name() const {
  return folder.filename().string();
}

RecordedStatus RunData::status() const {
  const std::string name = text_at(record, "status");
  if (name.empty()) return {};
  return {.name = name, .status = run_status_from(name)};
}

std::vector<std::string> RunData::commands() const {
  std::vector<std::string> commands;
  const Json* calls = record.find("calls");
  if (!calls || !calls->is_array()) return commands;
  for (const Json& call : calls->as_array()) {
    const Json* words = call.find("command");
    if (!words || !words->is_array()) continue;
    std::vector<std::string> quoted;
    for (const Json& word : words->as_array())
      if (word.is_string()) quoted.push_back(shell_word(word.as_string()));
    const std::string command = joined(quoted, " ");
    if (!command.empty() && !std::ranges::count(commands, command)) commands.push_back(command);
  }
  return commands;
}

double RunData::tokens_at(std::int64_t step) const {
  return config ? static_cast<double>(step) * static_cast<double>(config->train.batch_tokens) : 0;
}

double RunData::tokens_per_second() const {
  return seconds() > 0 ? tokens_at(steps.back().step) / seconds() : 0;
}

double RunData::final_train_loss() const {
  const double sum = std::accumulate(last_losses.begin(), last_losses.end(), 0.0);
  return last_losses.empty() ? kUnknown : sum / static_cast<double>(last_losses.size());
}

const ValidationPoint* RunData::best_validation() const {
  const ValidationPoint* best = nullptr;
  for (const ValidationPoint& point : validations)
    if (!best || std::isnan(best->loss) || point.loss < best->loss) best = &point;
  return best;
}

RunFollower::MetricsState::MetricsState(std::size_t most_points)
    : steps(most_points), validations(most_points), samples(kMaxSampledSteps) {}

RunFollower::RunFollower(fs::path folder, std::size_t most_points)
    : most_points_(most_points), state_(most_points) {
  if (!folder.has_filename()) folder = folder.parent_path();  // "runs/a/"
  data_.folder = std::move(folder);
}

const RunData& RunFollower::refresh() {
  const fs::path& folder = data_.folder;
  if (!fs::exists(folder)) return data_;
  data_.config = config_in(folder / "config.toml");
  data_.data = json_in(folder / "data.json");
  read_metrics();
  data_.start = state_.start;
  data_.steps = state_.steps.points();
  data_.last_losses = state_.last_losses;
  data_.validations = state_.validations.points();
  data_.samples = state_.samples.points();
  if (!state_.latest_sample.texts.empty()) data_.samples.push_back(state_.latest_sample);
  data_.record = json_in(folder / "run.json");
  data_.files = models_of(folder);
  return data_;
}

void RunFollower::read_metrics() {
  const fs::path path = data_.folder / "metrics.jsonl";
  std::error_code error;
  const std::uint64_t size = fs::file_size(path, error);
  if (error) return;
  if (size < state_.place.offset) state_ = MetricsState(most_points_);
  const auto take_all = [&] {
    for (MetricsReader reader(path, state_.place); reader.next();) state_.take(reader);
  };
  if (state_.place.offset == 0) return take_all();
  try {
    take_all();
  } catch (const Error&) {  // the file was rewritten, so reading cannot continue at the old position
    state_ = MetricsState(most_points_);
    take_all();
  }
}

void RunFollower::MetricsState::take(const MetricsReader& reader) {
  if (const StepLine* line = reader.step_line()) {
    take_step(line->step, figures_in(*line));
  } else {
    const Json event = reader.event();
    const std::string kind = text_at(event, "event");
    const std::int64_t number = event.at("step").as_int();
    if (kind == "step") take_step(number, figures_in(event));
    if (kind == "validation") take_validation(event);
    if (kind == "sample") take_sample(event);
    if (kind == "start")
      start = StartFacts{.parameters = static_cast<std::int64_t>(count_at(event, "parameters")),
                         .documents = count_at(event, "train_documents"),
                         .tokens = count_at(event, "train_tokens"),
                         .bytes = count_at(event, "train_bytes"),
                         .val_tokens = count_at(event, "val_tokens")};
  }
  place = reader.place();
}

void RunFollower::MetricsState::take_step(std::int64_t number, const StepFigures& figures) {
  check(number > step, "metrics.jsonl: step {} follows step {}, expected increasing steps", number, step);
  step = number;
  if (std::isfinite(figures.seconds)) elapsed += figures.seconds;
  steps.add({.step = number, .mean = figures, .low = figures, .high = figures, .elapsed = elapsed});
  if (last_losses.size() == kLastSteps) last_losses.erase(last_losses.begin());
  last_losses.push_back(figures.loss);
}

void RunFollower::MetricsState::take_validation(const Json& event) {
  const Json* best = event.find("best");
  validations.add({.step = event.at("step").as_int(),
                   .loss = number_at(event, "val_loss"),
                   .bits_per_byte = number_at(event, "val_bpb"),
                   .best = best && best->is_bool() && best->as_bool(),
                   .elapsed = elapsed});
}

void RunFollower::MetricsState::take_sample(const Json& event) {
  const std::int64_t number = event.at("step").as_int();
  if (latest_sample.step != number) {
    if (!latest_sample.texts.empty()) samples.add(std::move(latest_sample));
    latest_sample = {.step = number, .texts = {}};
  }
  if (latest_sample.texts.size() < kMaxTextsPerStep)
    latest_sample.texts.push_back({.prompt = text_at(event, "prompt"), .text = text_at(event, "text")});
}

RunData read_run(const fs::path& folder) {
  check(fs::exists(folder / "metrics.jsonl"), Hint{"pass a folder created by `thimble train -o RUN`"},
        "{} is not a run: it contains no metrics.jsonl", folder.string());
  RunFollower follower(folder);
  return follower.refresh();
}

}  // namespace thimble
