#include "base/text.h"

namespace thimble {

namespace {

template <class Parts, class Text>
std::string join(const Parts& parts, std::string_view between, Text text_of) {
  std::string text;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) text += between;
    text += text_of(parts[i]);
  }
  return text;
}

}  // namespace

std::string joined(std::span<const std::string> parts, std::string_view between) {
  return join(parts, between, [](std::string_view part) { return part; });
}

std::string joined(std::span<const std::string_view> parts, std::string_view between) {
  return join(parts, between, [](std::string_view part) { return part; });
}

std::string joined(std::span<const std::int32_t> numbers, std::string_view between) {
  return join(numbers, between, [](std::int32_t number) { return std::to_string(number); });
}

std::string joined(std::span<const std::int64_t> numbers, std::string_view between) {
  return join(numbers, between, [](std::int64_t number) { return std::to_string(number); });
}

}  // namespace thimble
