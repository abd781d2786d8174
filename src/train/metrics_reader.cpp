#include "train/metrics_reader.h"

#include <charconv>
#include <cmath>

#include "base/error.h"

namespace thimble {

namespace {

constexpr std::size_t kMostLineBytes = std::size_t{1} << 22, kReadBytes = std::size_t{1} << 16;

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// from_chars takes more than JSON does: "inf", ".5", "1.", "01".
bool is_json_number(std::string_view text) {
  if (text.starts_with('-')) text.remove_prefix(1);
  if (text.empty() || !is_digit(text[0])) return false;
  if (text[0] == '0' && text.size() > 1 && is_digit(text[1])) return false;
  const std::size_t point = text.find('.');
  return point == text.npos || (point + 1 < text.size() && is_digit(text[point + 1]));
}

// Walks a text that must be just so; once it is not, nothing is taken any more.
class Walk {
 public:
  explicit Walk(std::string_view rest) : rest_(rest) {}

  bool has(std::string_view text) const { return good_ && rest_.starts_with(text); }
  Walk& over(std::string_view text) {
    good_ = has(text);
    if (good_) rest_.remove_prefix(text.size());
    return *this;
  }
  template <class Number>
  Walk& take(Number& value) {
    if (!good_) return *this;
    const char* begin = rest_.data();
    const auto [end, error] = std::from_chars(begin, begin + rest_.size(), value);
    const auto size = static_cast<std::size_t>(end - begin);
    good_ = error == std::errc{} && is_json_number(rest_.substr(0, size));
    if (good_) rest_.remove_prefix(size);
    return *this;
  }
  Walk& take(bool& value) {
    value = has("true");
    return over(value ? "true" : "false");
  }
  bool is_over() const { return good_ && rest_.empty(); }

 private:
  std::string_view rest_;
  bool good_ = true;
};

}  // namespace

std::optional<StepLine> step_in(std::string_view line) {
  StepLine step;
  double unused = 0;
  Walk walk(line);
  walk.over(R"({"event":"step","step":)").take(step.step);
  walk.over(R"(,"loss":)").take(step.loss);
  walk.over(R"(,"targets":)").take(step.targets);
  walk.over(R"(,"bytes":)").take(step.bytes);
  walk.over(R"(,"lr_multiplier":)").take(step.multiplier);
  walk.over(R"(,"grad_norm":)").take(step.grad_norm);
  walk.over(R"(,"clipped":)").take(step.clipped);
  walk.over(R"(,"seconds":)").take(step.seconds);
  walk.over(R"(,"input_seconds":)").take(step.input_seconds);
  for (const std::string_view more : {R"(,"qat_bits":)", R"(,"loss_scale":)"})
    if (walk.has(more)) walk.over(more).take(unused);
  if (!walk.over("}").is_over()) return std::nullopt;
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
  if (endless_) return false;
  line_start_ += std::exchange(line_size_, 0);
  step_line_.reset();
  for (std::size_t from = line_start_;;) {
    if (const std::size_t end = buffer_.find('\n', from); end != std::string::npos) {
      line_size_ = end + 1 - line_start_;
      break;
    }
    if (buffer_.size() - line_start_ > kMostLineBytes) {
      endless_ = true;
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
  check(!endless_, "{}:{}: a line of more than {} bytes is none that training wrote", file_.path().string(),
        place_.lines + 1, kMostLineBytes);
  return parse_json(std::string_view(buffer_).substr(line_start_, line_size_ - 1), file_.path().string(),
                    {.first_line = place_.lines});
}

std::int64_t MetricsReader::step() const {
  return step_line_ ? step_line_->step : event().at("step").as_int();
}

}  // namespace thimble
