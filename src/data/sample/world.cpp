#include "data/sample/world.h"

#include <fmt/format.h>

#include "base/error.h"

namespace thimble::sample {

std::string number_word(int number) {
  static constexpr auto kWords = std::to_array<std::string_view>(
      {"no",       "one",     "two",     "three",     "four",     "five",     "six",
       "seven",    "eight",   "nine",    "ten",       "eleven",   "twelve",   "thirteen",
       "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty"});
  static_assert(kWords.size() == kLargestNumber + 1);
  check(number >= 0 && number <= kLargestNumber, "[sample] the small world counts to {}, not to {}",
        kLargestNumber, number);
  return std::string(kWords[static_cast<std::size_t>(number)]);
}

std::string with_article(std::string_view words) {
  const bool vowel = std::string_view("aeiou").find(words.at(0)) != std::string_view::npos;
  return fmt::format("{} {}", vowel ? "an" : "a", words);
}

std::string counted(int number, std::string_view good) {
  return fmt::format("{} {}{}", number_word(number), good, number == 1 ? "" : "s");
}

std::string capitalised(std::string_view words) {
  std::string text(words);
  if (text.at(0) >= 'a' && text[0] <= 'z') text[0] = static_cast<char>(text[0] - 'a' + 'A');
  return text;
}

std::string listed(std::span<const std::string> words) {
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (i > 0) text += i + 1 == words.size() ? " and " : ", ";
    text += words[i];
  }
  return text;
}

}  // namespace thimble::sample
