#include "train/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numbers>
#include <string>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/machine.h"
#include "base/parallel.h"

namespace thimble {

namespace {

bool is_of_validation(const MetricsReader& reader) {
  if (reader.step_line()) return false;
  const std::string event = reader.event().at("event").as_string();
  return event == "validation" || event == "sample";
}

// The size of the leading part of the file that consists of complete lines up to `last_step`.
std::uint64_t kept_bytes(const std::filesystem::path& path, std::int64_t last_step, bool validated) {
  std::uint64_t kept = 0;
  for (MetricsReader reader(path); reader.next(); kept = reader.place().offset) {
    try {
      if (reader.step() > last_step) break;
      if (!validated && reader.step() == last_step && is_of_validation(reader)) break;
    } catch (const Error&) {
      break;  // not an event, or truncated: drop everything from here on
    }
  }
  return kept;
}

}  // namespace

MetricsFile::MetricsFile(FileOps& ops, std::filesystem::path path)
    : ops_(ops), path_(std::move(path)), file_(ops.open_for_writing(path_)) {
  if (ops.try_lock(file_)) return;
  ops.close(file_);
  fail(Hint{"wait until it ends, or choose another folder with -o"}, "another process is training in {}",
       folder_of(path_).string());
}

MetricsFile::~MetricsFile() {
  ops_.close(file_);
}

void MetricsFile::keep_until(std::int64_t step, bool validated) {
  ops_.truncate(file_, step < 0 ? 0 : kept_bytes(path_, step, validated));
}

void MetricsFile::flush() {
  ops_.sync(file_);
}

void MetricsFile::add(const Json& event) {
  const std::string line = event.dump() + "\n";
  auto rest = std::as_bytes(std::span(line));
  while (!rest.empty()) rest = rest.subspan(ops_.write(file_, rest));
}

namespace {

constexpr std::size_t kMostLineBytes = std::size_t{1} << 22, kReadBytes = std::size_t{1} << 16;

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// from_chars also accepts text that is not a JSON number: "inf", ".5", "1.", "01".
bool is_json_number(std::string_view text) {
  if (text.starts_with('-')) text.remove_prefix(1);
  if (text.empty() || !is_digit(text[0])) return false;
  if (text[0] == '0' && text.size() > 1 && is_digit(text[1])) return false;
  const std::size_t point = text.find('.');
  return point == text.npos || (point + 1 < text.size() && is_digit(text[point + 1]));
}

// Parses a text of fixed layout. After the first mismatch all further calls do nothing.
class FixedLayoutParser {
 public:
  explicit FixedLayoutParser(std::string_view rest) : rest_(rest) {}

  bool has(std::string_view text) const { return good_ && rest_.starts_with(text); }
  FixedLayoutParser& skip(std::string_view text) {
    good_ = has(text);
    if (good_) rest_.remove_prefix(text.size());
    return *this;
  }
  template <class Number>
  FixedLayoutParser& take(Number& value) {
    if (!good_) return *this;
    const char* begin = rest_.data();
    const auto [end, error] = std::from_chars(begin, begin + rest_.size(), value);
    const auto size = static_cast<std::size_t>(end - begin);
    good_ = error == std::errc{} && is_json_number(rest_.substr(0, size));
    if (good_) rest_.remove_prefix(size);
    return *this;
  }
  FixedLayoutParser& take(bool& value) {
    value = has("true");
    return skip(value ? "true" : "false");
  }
  bool at_end() const { return good_ && rest_.empty(); }

 private:
  std::string_view rest_;
  bool good_ = true;
};

}  // namespace

std::optional<StepLine> step_in(std::string_view line) {
  StepLine step;
  double unused = 0;
  FixedLayoutParser parser(line);
  parser.skip(R"({"event":"step","step":)").take(step.step);
  parser.skip(R"(,"loss":)").take(step.loss);
  parser.skip(R"(,"targets":)").take(step.targets);
  parser.skip(R"(,"bytes":)").take(step.bytes);
  parser.skip(R"(,"lr_multiplier":)").take(step.multiplier);
  parser.skip(R"(,"grad_norm":)").take(step.grad_norm);
  parser.skip(R"(,"clipped":)").take(step.clipped);
  parser.skip(R"(,"seconds":)").take(step.seconds);
  parser.skip(R"(,"input_seconds":)").take(step.input_seconds);
  for (const std::string_view more : {R"(,"qat_bits":)", R"(,"loss_scale":)"})
    if (parser.has(more)) parser.skip(more).take(unused);
  if (!parser.skip("}").at_end()) return std::nullopt;
  return step;
}

MetricsReader::MetricsReader(const std::filesystem::path& path, Place from)
    : file_(path), read_to_(from.offset), place_(from) {}

void MetricsReader::read_more() {
  buffer_.erase(0, line_start_);
  line_start_ = 0;
  const std::size_t had = buffer_.size();
  buffer_.resize(had + kReadBytes);
  const std::size_t got =
      file_.read_some_at(read_to_, std::as_writable_bytes(std::span(buffer_)).subspan(had));
  buffer_.resize(had + got);
  read_to_ += got;
}

bool MetricsReader::next() {
  if (oversized_) return false;
  line_start_ += std::exchange(line_size_, 0);
  step_line_.reset();
  for (std::size_t from = line_start_;;) {
    if (const std::size_t end = buffer_.find('\n', from); end != std::string::npos) {
      line_size_ = end + 1 - line_start_;
      break;
    }
    if (buffer_.size() - line_start_ > kMostLineBytes) {
      oversized_ = true;
      return true;
    }
    from = buffer_.size() - line_start_;  // read_more moves the line to the front
    const std::uint64_t before = read_to_;
    read_more();
    if (read_to_ == before) return false;
  }
  place_.offset += line_size_;
  ++place_.lines;
  step_line_ = step_in(std::string_view(buffer_).substr(line_start_, line_size_ - 1));
  return true;
}

Json MetricsReader::event() const {
  check(!oversized_, "{}:{}: expected lines of at most {} bytes, found a longer one", file_.path().string(),
        place_.lines + 1, kMostLineBytes);
  return parse_json(std::string_view(buffer_).substr(line_start_, line_size_ - 1), file_.path().string(),
                    {.first_line = place_.lines});
}

std::int64_t MetricsReader::step() const {
  return step_line_ ? step_line_->step : event().at("step").as_int();
}

namespace {

constexpr std::size_t kMostPoints = 512;
constexpr std::size_t kSmoothedSteps = 50;
constexpr double kSpikeDeviations = 6, kSpikeNats = 0.25;  // a spike exceeds the mean by both

}  // namespace

void Series::add(double value) {
  last_sum_ += value;
  if (++in_last_ < per_point_) return;
  full_.push_back(last_sum_ / static_cast<double>(in_last_));
  last_sum_ = 0;
  in_last_ = 0;
  if (full_.size() < kMostPoints) return;
  for (std::size_t i = 0; i < kMostPoints / 2; ++i) full_[i] = (full_[2 * i] + full_[2 * i + 1]) / 2;
  full_.resize(kMostPoints / 2);
  per_point_ *= 2;
}

std::vector<double> Series::points() const {
  std::vector<double> points = full_;
  if (in_last_ > 0) points.push_back(last_sum_ / static_cast<double>(in_last_));
  return points;
}

CpuUse CpuUse::now() {
  return {.threads = max_threads(), .level = std::string(cpu_level_name(cpu_level()))};
}

std::optional<CpuUse> CpuUse::from(const Json& record) {
  const Json *level = record.find("cpu_level"), *threads = record.find("threads");
  if (!level || !threads || !level->is_string() || !threads->is_int()) return std::nullopt;
  return CpuUse{.threads = threads->as_int(), .level = level->as_string()};
}

std::string CpuUse::text() const {
  return fmt::format("{} thread{} at CPU level {}", threads, threads == 1 ? "" : "s", level);
}

bool RunHistory::is_spike(double loss) const {
  if (recent_.size() < kSmoothedSteps) return false;
  const double mean = smoothed_loss();
  double squares = 0;
  for (const StepRecord& record : recent_) squares += (record.loss - mean) * (record.loss - mean);
  const double deviation = std::sqrt(squares / static_cast<double>(recent_.size()));
  return loss > mean + std::max(kSpikeNats, kSpikeDeviations * deviation);
}

void RunHistory::add(const StepRecord& record) {
  ++steps_;
  seconds_ += record.seconds;
  input_seconds_ += record.input_seconds;
  skipped_ += record.skipped;
  if (record.skipped) return;
  spikes_ += is_spike(record.loss);
  clipped_ += record.clipped;
  losses_.add(record.loss);
  grad_norms_.add(record.grad_norm);
  recent_.push_back(record);
  if (recent_.size() > kSmoothedSteps) recent_.pop_front();
}

void RunHistory::add_call(std::optional<CpuUse> cpu_use) {
  cpu_use_ = std::move(cpu_use);
}

void RunHistory::add_validation(std::int64_t step, double loss) {
  validations_.push_back({step, loss});
}

double RunHistory::smoothed_loss() const {
  double sum = 0;
  for (const StepRecord& record : recent_) sum += record.loss;
  return recent_.empty() ? 0 : sum / static_cast<double>(recent_.size());
}

double RunHistory::lowest_latest_loss() const {
  if (recent_.empty()) return 0;
  const auto count = std::min<std::ptrdiff_t>(std::ssize(recent_), 10);
  return std::ranges::min_element(recent_.end() - count, recent_.end(), {}, &StepRecord::loss)->loss;
}

double RunHistory::smoothed_bits_per_byte() const {
  double nats = 0, bytes = 0;
  for (const StepRecord& record : recent_) {
    nats += record.loss * static_cast<double>(record.targets);
    bytes += static_cast<double>(record.bytes);
  }
  return bytes > 0 ? nats / std::numbers::ln2 / bytes : 0;
}

double RunHistory::bytes_per_token() const {
  double targets = 0, bytes = 0;
  for (const StepRecord& record : recent_) {
    targets += static_cast<double>(record.targets);
    bytes += static_cast<double>(record.bytes);
  }
  return targets > 0 ? bytes / targets : 0;
}

namespace {

constexpr std::int64_t kTrendSteps = 20;
constexpr std::int64_t kDivergedSteps = 20, kDivergedAtTheEnd = 5;
constexpr double kHighFactor = 1.5, kHighNats = 1;

}  // namespace

double LossTrend::limit() const {
  return std::max(kHighFactor * lowest, lowest + kHighNats);
}

void LossTrend::add(double loss) {
  high_steps = steps > 0 && loss > limit() ? high_steps + 1 : 0;
  ++steps;
  smoothed += (loss - smoothed) / static_cast<double>(std::min(steps, kTrendSteps));
  lowest = steps == 1 ? smoothed : std::min(lowest, smoothed);
}

std::string LossTrend::text() const {
  return fmt::format("the loss was above {:.4g} for {} steps; its lowest mean was {:.4g}", limit(),
                     high_steps, lowest);
}

bool LossTrend::has_diverged(bool at_the_end) const {
  return high_steps >= (at_the_end ? kDivergedAtTheEnd : kDivergedSteps);
}

namespace {

StepRecord step_record(const StepLine& line) {
  return {.loss = line.loss,
          .targets = line.targets,
          .bytes = line.bytes,
          .grad_norm = line.grad_norm,
          .seconds = line.seconds,
          .input_seconds = line.input_seconds,
          .clipped = line.clipped};
}

StepRecord step_record(const Json& event) {
  StepRecord record{.targets = event.at("targets").as_int(),
                    .bytes = event.at("bytes").as_uint(),
                    .seconds = event.at("seconds").as_double(),
                    .input_seconds = event.at("input_seconds").as_double()};
  const Json* skipped = event.find("skipped");
  record.skipped = skipped && skipped->as_bool();
  if (record.skipped) return record;
  record.loss = event.at("loss").as_double();
  record.grad_norm = event.at("grad_norm").as_double();
  record.clipped = event.at("clipped").as_bool();
  return record;
}

}  // namespace

RunHistory read_history(const std::filesystem::path& metrics, std::int64_t last_step) {
  RunHistory history;
  for (MetricsReader reader(metrics); reader.next();) {
    if (const StepLine* line = reader.step_line()) {
      if (line->step > last_step) break;
      history.add(step_record(*line));
      continue;
    }
    const Json event = reader.event();
    if (event.at("step").as_int() > last_step) break;
    const std::string& kind = event.at("event").as_string();
    if (kind == "step")
      history.add(step_record(event));
    else if (kind == "validation")
      history.add_validation(event.at("step").as_int(), event.at("val_loss").as_double());
    else if (kind == "start" || kind == "resume")
      history.add_call(CpuUse::from(event));
  }
  return history;
}

}  // namespace thimble
