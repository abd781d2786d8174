#include "sweep/results.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "base/files.h"
#include "train/run_folder.h"

namespace thimble {

namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 30;
constexpr std::string_view kFileName = "results.jsonl";

double number_in(const Json& line, std::string_view key) {
  const Json* value = line.find(key);
  return value && value->is_number() ? value->as_double() : std::numeric_limits<double>::quiet_NaN();
}

std::int64_t count_in(const Json& line, std::string_view key) {
  const Json* value = line.find(key);
  return value && value->is_int() ? value->as_int() : 0;
}

std::string text_in(const Json& line, std::string_view key) {
  const Json* value = line.find(key);
  return value && value->is_string() ? value->as_string() : "";
}

// A run that failed is repeated, after any number of steps.
bool replaces(const SweepResult& later, const SweepResult& earlier) {
  if (later.variant != earlier.variant || later.seed != earlier.seed || later.digest != earlier.digest)
    return false;
  if (earlier.status == kFailed) return true;
  return later.settings == earlier.settings && later.steps == earlier.steps &&
         later.batch_tokens == earlier.batch_tokens && later.device == earlier.device;
}

const SweepResult& add_result(std::vector<SweepResult>& results, SweepResult result) {
  const auto old = std::ranges::find_if(results, [&](const SweepResult& r) { return replaces(result, r); });
  if (old == results.end()) return results.emplace_back(std::move(result));
  if (!std::isnan(result.packed_bpb) || std::isnan(old->packed_bpb)) *old = std::move(result);
  return *old;
}

// Adds the results of a file and returns the size of its complete lines.
std::uint64_t add_file(const fs::path& path, const Log& log, std::vector<SweepResult>& results) {
  const std::string text = read_file(path, kMaxBytes);
  std::uint64_t number = 0, kept = 0;
  for (std::string_view rest = text; !rest.empty();) {
    ++number;
    const std::size_t end = rest.find('\n');
    if (end == rest.npos) {
      log.warning("{}: the last line is incomplete and is left out", path.string());
      break;
    }
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(end + 1);
    kept += end + 1;
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    try {
      add_result(results,
                 sweep_result(parse_json(line, path.string(), {.first_line = number}), folder_of(path)));
    } catch (const Error& error) {
      fail(Hint{"remove the line, or restore the file"}, "{}:{} is not the result of a run: {}",
           path.string(), number, error.what());
    }
  }
  return kept;
}

}  // namespace

bool SweepResult::finished() const {
  const std::optional<RunStatus> known = run_status_from(status);
  return known && is_finished(*known);
}

SweepResult sweep_result(const Json& line, const fs::path& folder) {
  SweepResult result{.variant = line.at("variant").as_string(),
                     .settings = text_in(line, "settings"),
                     .device = text_in(line, "device"),
                     .run = folder / text_in(line, "run"),
                     .digest = text_in(line, "settings_digest"),
                     .status = text_in(line, "status"),
                     .score = text_in(line, "score"),
                     .seed = line.at("seed").as_int(),
                     .steps = count_in(line, "steps"),
                     .batch_tokens = count_in(line, "batch_tokens"),
                     .val_bpb = number_in(line, "val_bpb"),
                     .val_loss = number_in(line, "val_loss"),
                     .best_bpb = number_in(line, "best_bpb"),
                     .best_loss = number_in(line, "best_loss"),
                     .unpacked_bpb = number_in(line, "unpacked_bpb"),
                     .packed_bpb = number_in(line, "packed_bpb"),
                     .bytes = number_in(line, "bytes"),
                     .tokens_per_second = number_in(line, "tokens_per_second"),
                     .line = line};
  if (const std::string more = text_in(line, "for_all"); !more.empty())  // of earlier versions
    result.settings += (result.settings.empty() ? "" : " ") + more;
  if (const Json* base = line.find("base")) result.base = base->is_bool() && base->as_bool();
  if (const std::string scores = text_in(line, "scores"); !scores.empty()) result.scores = folder / scores;
  if (result.status.empty()) result.status = name_of(RunStatus::completed);
  return result;
}

std::vector<SweepResult> read_results(std::span<const fs::path> paths, const Log& log) {
  std::vector<SweepResult> results;
  for (const fs::path& path : paths) {
    const fs::path file = fs::is_directory(path) ? path / kFileName : path;
    check(fs::exists(file), Hint{"pass a folder written by `thimble sweep`, or its results.jsonl"},
          "{} contains no results of a sweep", path.string());
    add_file(file, log, results);
  }
  return results;
}

ResultsFile::ResultsFile(FileOps& ops, const fs::path& folder, const Log& log)
    : ops_(ops), folder_(folder), file_(ops.open_for_writing(folder / kFileName)) {
  try {
    check(ops_.try_lock(file_), Hint{"wait until it ends, or choose another folder with -o"},
          "another sweep is running in {}", folder.string());
    ops_.truncate(file_, add_file(folder / kFileName, log, results_));
  } catch (...) {
    ops_.close(file_);
    throw;
  }
}

ResultsFile::~ResultsFile() {
  ops_.close(file_);
}

const SweepResult& ResultsFile::add(const Json& line) {
  const std::string text = line.dump() + "\n";
  auto rest = std::as_bytes(std::span(text));
  while (!rest.empty()) rest = rest.subspan(ops_.write(file_, rest));
  ops_.sync(file_);
  return add_result(results_, sweep_result(line, folder_));
}

std::vector<ScoredPart> read_scores(const fs::path& path) {
  const std::string text = read_file(path, kMaxBytes);
  std::vector<ScoredPart> parts;
  std::uint64_t number = 0;
  for (std::string_view rest = text; !rest.empty();) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    const Json line = parse_json(rest.substr(0, end), path.string(), {.first_line = ++number});
    const Json* document = line.find("document");
    parts.push_back({.is_document = document != nullptr,
                     .index = static_cast<std::size_t>((document ? *document : line.at("block")).as_uint()),
                     .score = {.nats = line.at("nats").as_double(),
                               .tokens = line.at("tokens").as_int(),
                               .bytes = line.at("bytes").as_uint()}});
    check(std::isfinite(parts.back().score.nats) && parts.back().score.tokens >= 0, "{}:{} is not a score",
          path.string(), number);
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return parts;
}

}  // namespace thimble
