#include "cli/console.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

#include "base/error.h"
#include "base/json.h"
#include "base/number.h"
#include "base/terminal.h"

namespace thimble {

namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// Somebody made our stdout non-blocking (ssh and some terminals do): until there is room.
void wait_until_writable(int descriptor) {
  pollfd stream{descriptor, POLLOUT, 0};
  poll(&stream, 1, -1);
}

}  // namespace

Console::Console(bool json, bool quiet)
    : json_(json), quiet_(quiet), log_(Log::to_stderr(quiet ? LogLevel::warning : LogLevel::info)) {}

void Console::print(std::string_view text) const {
  // Straight to the descriptor: a buffer would be flushed at exit, when nobody looks at errors any more.
  while (!text.empty()) {
    const ssize_t written = write(STDOUT_FILENO, text.data(), text.size());
    if (written >= 0)
      text.remove_prefix(static_cast<std::size_t>(written));
    else if (errno == EPIPE)
      throw BrokenPipe{};
    else if (errno == EAGAIN)
      wait_until_writable(STDOUT_FILENO);
    else if (errno != EINTR)
      fail("cannot write the result to stdout: {}", std::strerror(errno));
  }
}

void Console::print_foreign(std::string_view text) const {
  print(isatty(STDOUT_FILENO) == 1 ? terminal_safe(text) : std::string(text));
}

void Console::tell(std::string_view text) const {
  fmt::print(stderr, "{}\n", isatty(STDERR_FILENO) == 1 ? terminal_safe(text) : std::string(text));
}

void Console::print_json(const Json& object) const {
  print(object.dump(2) + "\n");
}

ProgressOutput Console::progress() const {
  return quiet_ ? ProgressOutput::nowhere() : ProgressOutput::to_stderr();
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

bool wants_colour(int file_descriptor) {
  const char* refused = std::getenv("NO_COLOR");
  const char* terminal = std::getenv("TERM");
  return isatty(file_descriptor) == 1 && (!refused || !*refused) &&
         !(terminal && std::strcmp(terminal, "dumb") == 0);
}

std::size_t page_width(std::size_t otherwise) {
  if (const char* columns = std::getenv("COLUMNS"))
    if (const auto width = number_in<std::size_t>(columns); width && *width > 0) return *width;
  return terminal_width(STDOUT_FILENO).value_or(otherwise);
}

void keep_standard_streams_open() {
  for (int descriptor = STDIN_FILENO; descriptor <= STDERR_FILENO; ++descriptor) {
    if (fcntl(descriptor, F_GETFD) != -1 || errno != EBADF) continue;
    // Opened the wrong way round, so that reading or writing still fails as on a closed one. The lowest free
    // descriptor is the one that is missing.
    if (open("/dev/null", descriptor == STDIN_FILENO ? O_WRONLY : O_RDONLY) != descriptor)
      fail("standard stream {} is closed and /dev/null cannot take its place: {}", descriptor,
           std::strerror(errno));
  }
}

}  // namespace thimble
