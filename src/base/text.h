// Blanks around a text (those of C: spaces, tabs, line and page ends), and ASCII letters whose case does not matter.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>

namespace thimble {

inline constexpr std::string_view kBlanks = " \t\r\n\v\f";

inline std::string_view without_blanks_behind(std::string_view text) {
  return text.substr(0, text.find_last_not_of(kBlanks) + 1);  // npos + 1 is 0
}

inline std::string_view without_blanks(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(kBlanks), text.size()));
  return without_blanks_behind(text);
}

inline std::string lower_case(std::string_view text) {
  std::string lower(text);
  for (char& c : lower)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return lower;
}

}  // namespace thimble
