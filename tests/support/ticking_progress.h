// A progress output whose clock advances so fast that every update of a bar is a line.
#pragma once

#include <string>

#include "base/progress.h"

namespace thimble {

struct TickingProgress {
  std::string lines;
  double now = 0;

  ProgressOutput output() {
    return {.enabled = true,
            .terminal = false,
            .width = 80,
            .write = [this](std::string_view text) { lines += text; },
            .seconds = [this] { return now += 20; }};
  }
  bool shows(std::string_view title) const { return lines.find(std::string(title) + " ") != lines.npos; }
};

}  // namespace thimble
