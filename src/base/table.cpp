#include "base/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>

namespace thimble {

std::size_t display_width(std::string_view text) {
  // Every byte that is not a UTF-8 continuation byte starts a character.
  return static_cast<std::size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

std::string shortened(std::string text, std::size_t most_bytes) {
  if (text.size() <= most_bytes) return text;
  std::size_t end = most_bytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  text.resize(end);
  return text + " ...";
}

namespace {

// "-1,234", "17.1 M", "65.1 MiB", "98%": a number with an optional short unit.
bool looks_numeric(std::string_view cell) {
  constexpr std::string_view kNumber = "+-.,0123456789";
  constexpr std::size_t kLongestUnit = 4;
  const std::size_t end = std::min(cell.find_first_not_of(kNumber), cell.size());
  if (cell.find_first_of("0123456789") >= end) return false;
  std::string_view unit = cell.substr(end);
  if (unit.starts_with(' ')) unit.remove_prefix(1);
  return unit.size() <= kLongestUnit && unit.find(' ') == unit.npos;
}

std::string padded(std::string_view cell, std::size_t width, bool right) {
  const std::string fill(width - std::min(width, display_width(cell)), ' ');
  return right ? fill + std::string(cell) : std::string(cell) + fill;
}

// The words of a cell in lines of at most `width` columns. A longer word gets its own line.
std::vector<std::string> broken(std::string_view cell, std::size_t width) {
  std::vector<std::string> lines(1);
  while (!cell.empty()) {
    const std::size_t end = std::min(cell.find(' '), cell.size());
    const std::string_view word = cell.substr(0, end);
    if (!lines.back().empty() && display_width(lines.back()) + 1 + display_width(word) > width)
      lines.emplace_back();
    if (!lines.back().empty()) lines.back() += ' ';
    lines.back() += word;
    cell.remove_prefix(std::min(end + 1, cell.size()));
  }
  return lines;
}

using Line = std::vector<std::string>;

constexpr std::size_t kGap = 2;  // between columns

std::vector<std::size_t> widths_of(const std::vector<Line>& lines) {
  std::vector<std::size_t> width;
  for (const Line& line : lines) {
    width.resize(std::max(width.size(), line.size()), 0);
    for (std::size_t c = 0; c < line.size(); ++c) width[c] = std::max(width[c], display_width(line[c]));
  }
  return width;
}

// Wraps the text columns of every line at `cap` columns; the rest of a cell goes to additional
// lines below.
std::vector<Line> narrowed(const std::vector<Line>& lines, const std::vector<bool>& numeric,
                           std::size_t cap) {
  std::vector<Line> out;
  for (const Line& line : lines) {
    const std::size_t first = out.size();
    for (std::size_t c = 0; c < line.size(); ++c) {
      const std::vector<std::string> pieces = numeric[c] ? std::vector{line[c]} : broken(line[c], cap);
      out.resize(std::max(out.size(), first + pieces.size()), Line(line.size()));
      for (std::size_t i = 0; i < pieces.size(); ++i) out[first + i][c] = pieces[i];
    }
  }
  return out;
}

// The largest width of text columns for which lines fit in `width`. Numeric columns are never
// narrowed.
std::size_t cap_for(const std::vector<std::size_t>& widths, const std::vector<bool>& numeric,
                    std::size_t width) {
  constexpr std::size_t kNarrowest = 12;  // narrower text columns are hard to read
  std::size_t cap = std::max(kNarrowest, *std::max_element(widths.begin(), widths.end()));
  const auto total = [&] {
    std::size_t sum = kGap * (widths.size() - 1);
    for (std::size_t c = 0; c < widths.size(); ++c) sum += numeric[c] ? widths[c] : std::min(widths[c], cap);
    return sum;
  };
  while (cap > kNarrowest && total() > width) --cap;
  return cap;
}

}  // namespace

std::string Table::text(std::size_t width) const {
  std::vector<Line> lines;
  if (!headings_.empty()) lines.push_back(headings_);
  lines.insert(lines.end(), rows_.begin(), rows_.end());

  std::vector<std::size_t> widths = widths_of(lines);
  std::vector<bool> numeric(widths.size(), !rows_.empty());
  for (const auto& row : rows_)
    for (std::size_t c = 0; c < row.size(); ++c)
      if (!row[c].empty() && row[c] != "-" && !looks_numeric(row[c])) numeric[c] = false;

  if (width > 0 && !widths.empty()) {
    lines = narrowed(lines, numeric, cap_for(widths, numeric, width));
    widths = widths_of(lines);
  }

  std::string out;
  for (const Line& line : lines) {
    std::string text;
    for (std::size_t c = 0; c < line.size(); ++c)
      text += std::string(c ? kGap : 0, ' ') + padded(line[c], widths[c], numeric[c]);
    text.erase(text.find_last_not_of(' ') + 1);
    out += text + "\n";
  }
  return out;
}

std::string with_commas(long long value) {
  std::string digits = fmt::format("{}", value);
  const std::size_t first = value < 0 ? 1 : 0;
  for (std::size_t at = digits.size(); at > first + 3;) digits.insert(at -= 3, 1, ',');
  return digits;
}

namespace {

// Three significant digits: 1.54, 17.1, 309.
std::string three_digits(double value) {
  const double size = std::abs(value);
  return fmt::format("{:.{}f}", value, size < 9.995 ? 2 : size < 99.95 ? 1 : 0);
}

std::string scaled(double value, double base, std::span<const char* const> units) {
  std::size_t unit = 0;
  // 999.5 would print as "1000": switch to the next unit slightly early.
  while (unit + 1 < units.size() && std::abs(value) >= base * 0.9995) value /= base, ++unit;
  if (unit == 0 && value == std::floor(value)) return fmt::format("{:.0f}{}", value, units[unit]);
  return three_digits(value) + units[unit];
}

}  // namespace

std::string with_unit(double value) {
  static constexpr std::array kUnits = {"", " k", " M", " G", " T", " P"};
  return scaled(value, 1000.0, kUnits);
}

std::string in_bytes(double bytes) {
  static constexpr std::array kUnits = {" B", " KiB", " MiB", " GiB", " TiB"};
  return scaled(bytes, 1024.0, kUnits);
}

std::string in_seconds(double seconds) {
  if (!std::isfinite(seconds)) return "?";
  if (seconds < 0.9995e-3) return three_digits(seconds * 1e6) + " us";
  if (seconds < 0.9995) return three_digits(seconds * 1e3) + " ms";
  if (seconds < 59.5) return three_digits(seconds) + " s";
  const auto whole = static_cast<long long>(std::llround(seconds));
  if (whole < 3600) return fmt::format("{}m {:02}s", whole / 60, whole % 60);
  if (whole < 86400) return fmt::format("{}h {:02}m", whole / 3600, whole / 60 % 60);
  return fmt::format("{}d {:02}h", whole / 86400, whole / 3600 % 24);
}

std::string sparkline(std::span<const double> values, std::size_t width) {
  static constexpr std::array kBars = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  if (values.empty() || width == 0) return {};
  const std::size_t buckets = std::min(width, values.size());
  std::vector<double> means(buckets);
  for (std::size_t b = 0; b < buckets; ++b) {
    const std::size_t begin = b * values.size() / buckets, end = (b + 1) * values.size() / buckets;
    double sum = 0;
    for (std::size_t i = begin; i < end; ++i) sum += values[i];
    means[b] = sum / static_cast<double>(end - begin);
  }
  double low = INFINITY, high = -INFINITY;
  for (double mean : means)
    if (std::isfinite(mean)) low = std::min(low, mean), high = std::max(high, mean);
  std::string line;
  for (double mean : means) {
    if (!std::isfinite(mean)) {
      line += '!';
      continue;
    }
    const double height = high > low ? (mean - low) / (high - low) : 0.5;
    line += kBars[static_cast<std::size_t>(std::min(7.0, height * 8))];
  }
  return line;
}

}  // namespace thimble
