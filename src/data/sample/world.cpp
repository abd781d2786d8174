#include "data/sample/world.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/digest.h"
#include "base/error.h"
#include "base/text.h"

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

std::string capitalized(std::string_view words) {
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

std::string has_fact(const Person& owner, std::string_view colour, std::string_view thing) {
  return fmt::format("has {} {} {}", owner.name, colour, thing);
}

std::string at_fact(std::string_view who, const Place& place) {
  return fmt::format("at {} {}", who, place.name);
}

std::string town_fact(std::string_view who, std::string_view town) {
  return fmt::format("near {} {}", who, town);
}

std::string colour_fact(std::string_view thing, std::string_view colour) {
  return fmt::format("colour {} {}", thing, colour);
}

std::string good_fact(std::string_view who, const Good& good) {
  return fmt::format("good {} {}", who, good.name);
}

std::string does_fact(std::string_view who, std::string_view deed) {
  return fmt::format("does {} {}", who, deed);
}

std::string count_fact(const Person& owner, int count, const Good& good) {
  return fmt::format("count {} {} {}", owner.name, count, good.name);
}

std::string sum_fact(const Person& owner, const Good& good, int had, int change) {
  return fmt::format("sum {} {} {} {:+}", owner.name, good.name, had, change);
}

std::string count_aloud_fact(int from, int to) {
  return fmt::format("count {} to {}", from, to);
}

std::string group_fact(const Place& place, std::span<const std::string_view> animals) {
  std::vector<std::string_view> sorted(animals.begin(), animals.end());
  std::ranges::sort(sorted);
  return fmt::format("group {} {}", place.name, joined(sorted, " "));
}

std::string size_fact(const Animal& one, const Animal& other) {
  const auto [first, second] = std::minmax(one.name, other.name);
  return fmt::format("size {} {}", first, second);
}

std::string height_fact(const Person& taller, const Person& shorter) {
  return fmt::format("taller {} {}", taller.name, shorter.name);
}

std::string likes_fact(const Person& who, std::string_view colour, std::string_view thing) {
  return fmt::format("likes {} {} {}", who.name, colour, thing);
}

Split split_of(std::string_view fact) {
  return digest_of(fact).low % 8 == 0 ? Split::heldout : Split::train;
}

}  // namespace thimble::sample
