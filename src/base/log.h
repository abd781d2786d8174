// Leveled logging to a sink: stderr in the binary, a string in tests. The library never prints
// directly.
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

  Log(LogLevel least, Sink sink) : lowest_level_(least), sink_(std::move(sink)) {}

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

  bool wants(LogLevel level) const { return level >= lowest_level_ && lowest_level_ != LogLevel::silent; }

 private:
  void write(LogLevel level, std::string_view line) const;

  LogLevel lowest_level_;
  Sink sink_;
};

// Writes all of the text to a descriptor without stdio's buffering, blocking as long as necessary.
// Returns 0 or the errno of the failure.
int write_all(int descriptor, std::string_view text);

// Writes to stderr. If that fails (closed stream, full disk, broken pipe), the text is lost and the
// program continues.
void write_to_stderr(std::string_view text);

// The width in columns, or nullopt if the descriptor is not a terminal or its width is unknown.
inline std::optional<std::size_t> terminal_width(int descriptor) {
  winsize size{};
  if (isatty(descriptor) != 1 || ioctl(descriptor, TIOCGWINSZ, &size) != 0 || size.ws_col == 0)
    return std::nullopt;
  return size.ws_col;
}

}  // namespace thimble
