// Seconds of the steady clock: for what something took.
#pragma once

#include <chrono>

namespace thimble {

inline double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace thimble
