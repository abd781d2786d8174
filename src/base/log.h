// Leveled logging. Lines go to a sink (stderr in the binary, a string in tests): the library itself never
// prints.
#pragma once

#include <fmt/core.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace thimble {

enum class LogLevel { debug, info, warning, silent };

class Log {
 public:
  using Sink = std::function<void(LogLevel, std::string_view line)>;

  Log(LogLevel least, Sink sink) : least_(least), sink_(std::move(sink)) {}

  static Log to_stderr(LogLevel least);
  static Log nowhere() { return {LogLevel::silent, {}}; }

  template <class... Args>
  void debug(fmt::format_string<Args...> format, Args&&... args) const {
    if (wants(LogLevel::debug)) write(LogLevel::debug, fmt::format(format, std::forward<Args>(args)...));
  }
  template <class... Args>
  void info(fmt::format_string<Args...> format, Args&&... args) const {
    if (wants(LogLevel::info)) write(LogLevel::info, fmt::format(format, std::forward<Args>(args)...));
  }
  template <class... Args>
  void warning(fmt::format_string<Args...> format, Args&&... args) const {
    if (wants(LogLevel::warning)) write(LogLevel::warning, fmt::format(format, std::forward<Args>(args)...));
  }

  bool wants(LogLevel level) const { return level >= least_ && least_ != LogLevel::silent; }

 private:
  void write(LogLevel level, std::string_view line) const;

  LogLevel least_;
  Sink sink_;
};

// Text to standard streams, past stdio's buffers: what was written is out, and what could not be is known at once.
// All of it, however long that takes. 0, or the errno of what went wrong.
int write_all(int descriptor, std::string_view text);

// To stderr. Where nobody listens any more (it is closed, its disk is full, the reader of its pipe has left) it is
// lost, and nothing else is: what is spoken of goes on.
void write_to_stderr(std::string_view text);

// How wide is the terminal?
// Nothing where the descriptor is no terminal, or the terminal does not say.
inline std::optional<std::size_t> terminal_width(int descriptor) {
  winsize size{};
  if (isatty(descriptor) != 1 || ioctl(descriptor, TIOCGWINSZ, &size) != 0 || size.ws_col == 0)
    return std::nullopt;
  return size.ws_col;
}

}  // namespace thimble
