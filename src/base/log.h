// Leveled logging. Lines go to a sink (stderr in the binary, a string in tests): the library itself never
// prints.
#pragma once

#include <fmt/core.h>

#include <functional>
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

}  // namespace thimble
