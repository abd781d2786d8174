#include "base/log.h"

#include <cstdio>

namespace thimble {

Log Log::to_stderr(LogLevel least) {
  return {least, [](LogLevel level, std::string_view line) {
            const char* prefix = level == LogLevel::warning ? "warning: " : "";
            // One call, so that lines of several threads do not mix.
            fmt::print(stderr, "{}{}\n", prefix, line);
          }};
}

void Log::write(LogLevel level, std::string_view line) const {
  if (sink_) sink_(level, line);
}

}  // namespace thimble
