#include "base/log.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>

namespace thimble {

Log Log::to_stderr(LogLevel least) {
  return {least, [](LogLevel level, std::string_view line) {
            const char* prefix = level == LogLevel::warning ? "warning: " : "";
            // One write per line, so that lines of several threads do not mix.
            write_to_stderr(fmt::format("{}{}\n", prefix, line));
          }};
}

void Log::write(LogLevel level, std::string_view line) const {
  if (sink_) sink_(level, line);
}

namespace {

// ssh and some terminals make stderr non-blocking: wait until it can be written again.
void wait_until_writable(int descriptor) {
  pollfd stream{descriptor, POLLOUT, 0};
  poll(&stream, 1, -1);
}

}  // namespace

int write_all(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(descriptor, text.data(), text.size());
    if (written >= 0)
      text.remove_prefix(static_cast<std::size_t>(written));
    else if (errno == EAGAIN)
      wait_until_writable(descriptor);
    else if (errno != EINTR)
      return errno;
  }
  return 0;
}

void write_to_stderr(std::string_view text) {
  write_all(STDERR_FILENO, text);
}

}  // namespace thimble
