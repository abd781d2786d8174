#include "base/error.h"

#include <fmt/format.h>

namespace thimble {

Error::Error(const std::string& message, Hint hint, std::source_location where)
    : std::runtime_error(message), hint_(std::move(hint.text)), where_(where) {}

Error::Error(const std::string& message, Field field, std::source_location where)
    : Error(message, std::move(field.hint), where) {
  field_ = field.name;
}

Error::~Error() = default;

void throw_error(fmt::string_view format, fmt::format_args args, Hint hint,
                 const std::source_location& where) {
  throw Error(fmt::vformat(format, args), std::move(hint), where);
}

void throw_error(fmt::string_view format, fmt::format_args args, Field field,
                 const std::source_location& where) {
  throw Error(fmt::vformat(format, args), std::move(field), where);
}

std::string describe(const Error& error) {
  std::string text = fmt::format("error: {}", error.what());
  if (!error.hint().empty()) text += fmt::format("\nhint: {}", error.hint());
#ifdef THIMBLE_DEBUG
  text += fmt::format("\nat: {}:{}", error.where().file_name(), error.where().line());
#endif
  return text;
}

}  // namespace thimble
