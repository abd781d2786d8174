#include "cli/console.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"

namespace thimble {

namespace {

constexpr std::size_t kWidestPage = 1000;  // columns; pictures allocate memory for each

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// Log lines quote file names and file contents, so they are escaped.
Log log_of(LogLevel least) {
  return {least, [plain = Log::to_stderr(least)](LogLevel level, std::string_view line) {
            const std::string text = safe_for(STDERR_FILENO, line);
            level == LogLevel::warning ? plain.warning("{}", text) : plain.info("{}", text);
          }};
}

}  // namespace

Console::Console(bool json, bool quiet, Capture* capture)
    : json_(json),
      quiet_(quiet),
      capture_(capture),
      log_(capture ? capture->log : log_of(quiet ? LogLevel::warning : LogLevel::info)) {}

void Console::print(std::string_view text) const {
  if (capture_) {
    capture_->output += text;
    return;
  }
  // Unbuffered: errors when flushing at exit would be lost.
  const int trouble = write_all(STDOUT_FILENO, text);
  if (trouble == EPIPE) throw BrokenPipe{};
  check(trouble == 0, "cannot write the result to stdout: {}", std::strerror(trouble));
}

void Console::print_foreign(std::string_view text) const {
  print(capture_ ? std::string(text) : safe_for(STDOUT_FILENO, text));
}

void Console::tell(std::string_view text) const {
  if (capture_)
    log_.info("{}", text);
  else
    write_to_stderr(safe_for(STDERR_FILENO, text) + "\n");
}

void Console::print_json(const Json& object) const {
  print(object.dump(2) + "\n");
}

ProgressOutput Console::progress() const {
  return quiet_ || capture_ ? ProgressOutput::nowhere() : ProgressOutput::to_stderr();
}

std::string terminal_safe(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const bool c1 = byte == 0xC2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xA0;
    if (c1) ++i;  // U+0080 to U+009F: two bytes
    if (c1 || byte == 0x7F || (byte < 0x20 && byte != '\n' && byte != '\t'))
      out += kReplacement;
    else
      out += text[i];
  }
  return out;
}

std::string safe_for(int file_descriptor, std::string_view text) {
  return isatty(file_descriptor) == 1 ? terminal_safe(text) : std::string(text);
}

bool wants_colour(int file_descriptor) {
  const char* no_colour = std::getenv("NO_COLOR");
  const char* terminal = std::getenv("TERM");
  return isatty(file_descriptor) == 1 && (!no_colour || !*no_colour) &&
         !(terminal && std::strcmp(terminal, "dumb") == 0);
}

std::size_t page_width(std::size_t otherwise) {
  if (const char* columns = std::getenv("COLUMNS"))
    if (const auto width = parse_number<std::size_t>(columns); width && *width > 0)
      return std::min(*width, kWidestPage);
  return terminal_width(STDOUT_FILENO).value_or(otherwise);
}

void keep_standard_streams_open() {
  for (int descriptor = STDIN_FILENO; descriptor <= STDERR_FILENO; ++descriptor) {
    if (fcntl(descriptor, F_GETFD) != -1 || errno != EBADF) continue;
    // Opened in the wrong direction, so that reads and writes still fail. open() returns the lowest
    // free descriptor.
    if (open("/dev/null", descriptor == STDIN_FILENO ? O_WRONLY : O_RDONLY) != descriptor)
      fail("standard stream {} is closed, and /dev/null cannot be opened instead: {}", descriptor,
           std::strerror(errno));
  }
}

}  // namespace thimble
