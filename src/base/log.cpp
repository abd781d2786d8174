#include "base/log.h"

#include "base/standard_streams.h"

namespace thimble {

Log Log::to_stderr(LogLevel least) {
  return {least, [](LogLevel level, std::string_view line) {
            const char* prefix = level == LogLevel::warning ? "warning: " : "";
            // One call, so that lines of several threads do not mix.
            write_to_stderr(fmt::format("{}{}\n", prefix, line));
          }};
}

void Log::write(LogLevel level, std::string_view line) const {
  if (sink_) sink_(level, line);
}

}  // namespace thimble
