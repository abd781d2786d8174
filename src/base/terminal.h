// How wide is the terminal?
#pragma once

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstddef>
#include <optional>

namespace thimble {

// Nothing where the descriptor is no terminal, or the terminal does not say.
inline std::optional<std::size_t> terminal_width(int descriptor) {
  winsize size{};
  if (isatty(descriptor) != 1 || ioctl(descriptor, TIOCGWINSZ, &size) != 0 || size.ws_col == 0)
    return std::nullopt;
  return size.ws_col;
}

}  // namespace thimble
