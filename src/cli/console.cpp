#include "cli/console.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

#include "base/error.h"
#include "base/json.h"

namespace thimble {

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
    else if (errno != EINTR)
      fail("cannot write the result to stdout: {}", std::strerror(errno));
  }
}

void Console::print_json(const Json& object) const {
  print(object.dump(2) + "\n");
}

ProgressOutput Console::progress() const {
  return quiet_ ? ProgressOutput::nowhere() : ProgressOutput::to_stderr();
}

bool wants_colour(int file_descriptor) {
  const char* refused = std::getenv("NO_COLOR");
  const char* terminal = std::getenv("TERM");
  return isatty(file_descriptor) == 1 && (!refused || !*refused) &&
         !(terminal && std::strcmp(terminal, "dumb") == 0);
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
