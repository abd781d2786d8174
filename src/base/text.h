// Text utilities: trimming, ASCII case, shell quoting, joining, number parsing, and "did you mean"
// suggestions.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace thimble {

// Some programs write this before a UTF-8 text. It is not part of the text.
inline constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

inline constexpr std::string_view kBlanks = " \t\r\n\v\f";

inline std::string_view trim_right(std::string_view text) {
  return text.substr(0, text.find_last_not_of(kBlanks) + 1);  // npos + 1 is 0
}

inline std::string_view trim(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(kBlanks), text.size()));
  return trim_right(text);
}

inline bool is_ascii_alnum(char c) {
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

inline std::string lower_case(std::string_view text) {
  std::string lower(text);
  for (char& c : lower)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return lower;
}

// The word quoted so that a shell reads it as one word.
inline std::string shell_word(std::string_view word) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./,:@%";
  if (!word.empty() && word.find_first_not_of(kPlain) == word.npos) return std::string(word);
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

// Joins parts with a separator: "a, b, c". Used instead of fmt::join, which adds about a second of
// compile time to every file that calls it.
std::string joined(std::span<const std::string> parts, std::string_view between);
std::string joined(std::span<const std::string_view> parts, std::string_view between);
std::string joined(std::span<const std::int32_t> numbers, std::string_view between);
std::string joined(std::span<const std::int64_t> numbers, std::string_view between);

// Parses a text that is entirely a number: "12", "1e-3". Returns nullopt for anything else,
// including trailing characters and numbers out of range.
template <class T>
std::optional<T> parse_number(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// Like parse_number, but the number may end in a unit: k or K (thousand), M (million), G (billion).
// "500k", "2.5M". An integer must be whole: "1.5k" is 1500, "0.5" is nullopt.
std::optional<std::int64_t> parse_integer_with_unit(std::string_view text);
std::optional<double> parse_number_with_unit(std::string_view text);

// Whether the text is a number followed by letters that are not one of these units: "5kB".
bool has_unknown_unit(std::string_view text);
inline constexpr std::string_view kUnitsHint =
    "the units are k (thousand), M (million) and G (billion), such as 500k";

// "Did you mean ...?" suggestions.

// The number of insertions, deletions, substitutions and swaps of adjacent letters that turn one
// word into the other.
std::size_t edit_distance(std::string_view a, std::string_view b);

// The nearest candidate; if none is close enough, the only one that starts with `word`; otherwise
// empty.
std::string_view nearest(std::string_view word, std::span<const std::string_view> candidates);

// Joins all problems of a file into one sentence: "a is missing; b is [3], expected [4]".

// Enough for every tensor of a real model; a hostile header may contain millions.
inline constexpr std::size_t kMaxProblems = 200;

inline std::string listed(std::vector<std::string> problems) {
  const std::size_t count = problems.size();
  if (count > kMaxProblems) {
    problems.resize(kMaxProblems);
    problems.push_back(fmt::format("and {} more", count - kMaxProblems));
  }
  return joined(problems, "; ");
}

}  // namespace thimble
