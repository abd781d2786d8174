#include "base/progress.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/log.h"
#include "base/table.h"

namespace thimble {

namespace {

constexpr double kQuietSeconds = 1;        // nothing is shown for shorter work
constexpr double kTerminalInterval = 0.1;  // redraws
constexpr double kPlainInterval = 10;      // lines in a log file

std::string bar(double fraction, int width) {
  static constexpr const char* kEighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const int eighths = static_cast<int>(std::clamp(fraction, 0.0, 1.0) * width * 8);
  std::string text;
  for (int i = 0; i < eighths / 8; ++i) text += "█";
  text += kEighths[eighths % 8];
  const int used = eighths / 8 + (eighths % 8 != 0);
  return text + std::string(static_cast<std::size_t>(width - used), ' ');
}

}  // namespace

ProgressOutput ProgressOutput::to_stderr() {
  ProgressOutput output;
  output.enabled = true;
  output.terminal = isatty(STDERR_FILENO) == 1;
  if (const auto width = terminal_width(STDERR_FILENO)) output.width = static_cast<int>(*width);
  output.write = write_to_stderr;
  output.seconds = [] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  };
  return output;
}

ProgressBar::ProgressBar(ProgressOutput output, std::string title, std::string unit, std::uint64_t total)
    : output_(std::move(output)), title_(std::move(title)), unit_(std::move(unit)), total_(total) {
  if (output_.enabled) started_ = last_drawn_ = output_.seconds();
}

ProgressBar::~ProgressBar() {
  clear();
}

void ProgressBar::clear() {
  if (on_screen_ && output_.terminal) output_.write("\r\x1b[K");
  on_screen_ = false;
}

void ProgressBar::update(std::uint64_t done, std::vector<std::string> notes) {
  done_ = done;
  if (!output_.enabled) return;
  notes_ = std::move(notes);
  const double now = output_.seconds();
  if (now - started_ < kQuietSeconds) return;
  if (now - last_drawn_ < (output_.terminal ? kTerminalInterval : kPlainInterval)) return;
  draw(now);
}

std::string ProgressBar::line(double elapsed) const {
  const bool bytes = unit_ == "bytes";
  const double done = static_cast<double>(done_), total = static_cast<double>(total_);
  const double rate = elapsed > 0 ? static_cast<double>(done_ - std::min(done_, before_)) / elapsed : 0;
  const std::string speed = bytes ? in_bytes(rate) + "/s" : with_unit(rate) + " " + unit_ + "/s";

  std::string text;
  if (total_ > 0) {
    const double fraction = std::min(1.0, done / total);
    const std::string eta = rate > 0 ? in_seconds(std::max(0.0, total - done) / rate) : "?";
    text = fmt::format(" {:3.0f}%  {}  ETA {}", fraction * 100, speed, eta);
  } else {
    text = fmt::format(" {}  {}", bytes ? in_bytes(done) : with_unit(done) + " " + unit_, speed);
  }
  const auto room_for = [&](const std::string& more) {
    return static_cast<int>(display_width(title_) + display_width(text) + display_width(more)) + 2 <
           output_.width;
  };
  for (const std::string& note : notes_) {
    if (output_.terminal && !room_for(note)) break;
    text += "  " + note;
  }
  if (!output_.terminal || total_ == 0) return title_ + text;

  // The bar uses the width that the text leaves free. A narrow terminal shows the numbers without a
  // bar.
  const int room = output_.width - 1 - static_cast<int>(display_width(title_) + display_width(text)) - 3;
  if (room < 8) return title_ + text;
  return fmt::format("{} |{}|{}", title_, bar(done / total, std::min(room, 40)), text);
}

void ProgressBar::draw(double now) {
  last_drawn_ = now;
  on_screen_ = true;
  const std::string text = line(now - started_);
  output_.write(output_.terminal ? "\r" + text + "\x1b[K" : text + "\n");
}

}  // namespace thimble
