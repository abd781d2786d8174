#include "base/text.h"

#include <algorithm>
#include <vector>

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

namespace {

// Removes the unit from the end of the text and returns the number of zeros it stands for.
std::size_t take_unit(std::string_view& text) {
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  if (text.size() < 2 || !digit(text[text.size() - 2])) return 0;
  const char unit = text.back();
  const std::size_t zeros = unit == 'k' || unit == 'K' ? 3 : unit == 'M' ? 6 : unit == 'G' ? 9 : 0;
  if (zeros > 0) text.remove_suffix(1);
  return zeros;
}

}  // namespace

std::optional<double> parse_number_with_unit(std::string_view text) {
  const std::size_t zeros = take_unit(text);
  return parse_number<double>(zeros == 0 ? std::string(text) : fmt::format("{}e{}", text, zeros));
}

std::optional<std::int64_t> parse_integer_with_unit(std::string_view text) {
  const std::size_t zeros = take_unit(text);
  if (zeros == 0) return parse_number<std::int64_t>(text);
  std::string digits(text);  // the decimal point moves by `zeros` digits, which is exact
  const std::size_t point = std::min(digits.find('.'), digits.size());
  digits.erase(point, 1);
  const std::size_t decimals = digits.size() - point;
  if (decimals > zeros) return std::nullopt;
  return parse_number<std::int64_t>(digits.append(zeros - decimals, '0'));
}

bool has_unknown_unit(std::string_view text) {
  const std::size_t end = std::min(text.find_first_not_of("+-.,_0123456789"), text.size());
  if (end == 0 || end == text.size() || text.find_first_of("0123456789") >= end) return false;
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == ' '; };
  return std::all_of(text.begin() + static_cast<std::ptrdiff_t>(end), text.end(), letter);
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  // Row i holds the distances from a[0, i) to every prefix of b; a swap looks back two rows.
  std::vector<std::size_t> before(b.size() + 1), previous(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    before.swap(previous);
    previous.swap(row);
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const bool same = a[i - 1] == b[j - 1];
      row[j] = std::min({previous[j] + 1, row[j - 1] + 1, previous[j - 1] + (same ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row[b.size()];
}

std::string_view nearest(std::string_view word, std::span<const std::string_view> candidates) {
  // Up to a third of the letters may differ: "tempreture" matches temperature, "foo" matches
  // nothing.
  const std::size_t allowed = std::max<std::size_t>(1, word.size() / 3);
  std::string_view best;
  std::size_t best_distance = allowed + 1;
  for (std::string_view candidate : candidates) {
    // The difference in length is a lower bound of the distance. Skipping by it matters because
    // words come from files and requests and may be a megabyte long.
    const std::size_t common = std::min(word.size(), candidate.size());
    if (std::max(word.size(), candidate.size()) - common >= best_distance) continue;
    const std::size_t distance = edit_distance(word, candidate);
    if (distance >= best_distance || distance >= candidate.size()) continue;
    best = candidate;
    best_distance = distance;
  }
  if (!best.empty() || word.size() < 2) return best;

  const auto begins = [&](std::string_view candidate) { return candidate.starts_with(word); };
  const auto found = std::find_if(candidates.begin(), candidates.end(), begins);
  if (found == candidates.end() || std::any_of(found + 1, candidates.end(), begins)) return {};
  return *found;
}

}  // namespace thimble
