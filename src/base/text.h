// Blanks around a text (those of C: spaces, tabs, line and page ends), ASCII letters whose case does not matter, and words
// for a shell.
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

inline constexpr std::string_view kBlanks = " \t\r\n\v\f";

inline std::string_view without_blanks_behind(std::string_view text) {
  return text.substr(0, text.find_last_not_of(kBlanks) + 1);  // npos + 1 is 0
}

inline std::string_view without_blanks(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(kBlanks), text.size()));
  return without_blanks_behind(text);
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

// As a shell reads it as one word.
inline std::string shell_word(std::string_view word) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./,:@%";
  if (!word.empty() && word.find_first_not_of(kPlain) == word.npos) return std::string(word);
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

// Parts with something between them: "a, b, c". (fmt::join does the same, and every file that calls it compiles fmt's
// formatters anew, a second each.)
std::string joined(std::span<const std::string> parts, std::string_view between);
std::string joined(std::span<const std::string_view> parts, std::string_view between);
std::string joined(std::span<const std::int32_t> numbers, std::string_view between);
std::string joined(std::span<const std::int64_t> numbers, std::string_view between);

// A number as a whole text: "12", "1e-3". Anything else, also a rest behind it or one too large, is none.
template <class T>
std::optional<T> number_in(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// "Did you mean ...?": the candidate that a mistyped word was probably meant to be.

// Insertions, deletions, substitutions and swaps of neighbours that turn one word into the other.
std::size_t edit_distance(std::string_view a, std::string_view b);

// The nearest candidate, or the only one that begins with `word`; empty if none is near enough to be worth
// suggesting.
std::string_view nearest(std::string_view word, std::span<const std::string_view> candidates);

// Everything wrong with a file in one sentence: "a is missing; b is [3], expected [4]".

// Enough for every tensor of a real model that went wrong; a hostile header may name millions.
inline constexpr std::size_t kMostProblems = 200;

inline std::string listed(std::vector<std::string> problems) {
  const std::size_t count = problems.size();
  if (count > kMostProblems) {
    problems.resize(kMostProblems);
    problems.push_back(fmt::format("and {} more", count - kMostProblems));
  }
  return joined(problems, "; ");
}

}  // namespace thimble
