#include "base/error.h"

#include <fmt/format.h>

namespace thimble {

std::string describe(const Error& error) {
  std::string text = fmt::format("error: {}", error.what());
  if (!error.hint().empty()) text += fmt::format("\nhint: {}", error.hint());
#ifdef THIMBLE_DEBUG
  text += fmt::format("\nat: {}:{}", error.where().file_name(), error.where().line());
#endif
  return text;
}

}  // namespace thimble
