// A number as a whole text: "12", "1e-3". Anything else, also a rest behind it or one too large, is none.
#pragma once

#include <charconv>
#include <optional>
#include <string_view>

namespace thimble {

template <class T>
std::optional<T> number_in(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace thimble
