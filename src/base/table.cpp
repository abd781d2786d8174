#include "base/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <iterator>

#include "base/utf8.h"

namespace thimble {

namespace {

struct CodeRange {
  char32_t first, last;
};

// East Asian wide and fullwidth characters and emoji of Unicode 14: two columns.
constexpr CodeRange kWide[] = {
    {0x1100, 0x115F},   {0x231A, 0x231B},   {0x2329, 0x232A},   {0x23E9, 0x23EC},   {0x23F0, 0x23F0},
    {0x23F3, 0x23F3},   {0x25FD, 0x25FE},   {0x2614, 0x2615},   {0x2648, 0x2653},   {0x267F, 0x267F},
    {0x2693, 0x2693},   {0x26A1, 0x26A1},   {0x26AA, 0x26AB},   {0x26BD, 0x26BE},   {0x26C4, 0x26C5},
    {0x26CE, 0x26CE},   {0x26D4, 0x26D4},   {0x26EA, 0x26EA},   {0x26F2, 0x26F3},   {0x26F5, 0x26F5},
    {0x26FA, 0x26FA},   {0x26FD, 0x26FD},   {0x2705, 0x2705},   {0x270A, 0x270B},   {0x2728, 0x2728},
    {0x274C, 0x274C},   {0x274E, 0x274E},   {0x2753, 0x2755},   {0x2757, 0x2757},   {0x2795, 0x2797},
    {0x27B0, 0x27B0},   {0x27BF, 0x27BF},   {0x2B1B, 0x2B1C},   {0x2B50, 0x2B50},   {0x2B55, 0x2B55},
    {0x2E80, 0x303E},   {0x3041, 0x3247},   {0x3250, 0x4DBF},   {0x4E00, 0xA4C6},   {0xA960, 0xA97C},
    {0xAC00, 0xD7A3},   {0xF900, 0xFAD9},   {0xFE10, 0xFE19},   {0xFE30, 0xFE6B},   {0xFF01, 0xFF60},
    {0xFFE0, 0xFFE6},   {0x16FE0, 0x1B2FB}, {0x1F004, 0x1F004}, {0x1F0CF, 0x1F0CF}, {0x1F18E, 0x1F18E},
    {0x1F191, 0x1F19A}, {0x1F200, 0x1F320}, {0x1F32D, 0x1F335}, {0x1F337, 0x1F37C}, {0x1F37E, 0x1F393},
    {0x1F3A0, 0x1F3CA}, {0x1F3CF, 0x1F3D3}, {0x1F3E0, 0x1F3F0}, {0x1F3F4, 0x1F3F4}, {0x1F3F8, 0x1F43E},
    {0x1F440, 0x1F440}, {0x1F442, 0x1F4FC}, {0x1F4FF, 0x1F53D}, {0x1F54B, 0x1F54E}, {0x1F550, 0x1F567},
    {0x1F57A, 0x1F57A}, {0x1F595, 0x1F596}, {0x1F5A4, 0x1F5A4}, {0x1F5FB, 0x1F64F}, {0x1F680, 0x1F6C5},
    {0x1F6CC, 0x1F6CC}, {0x1F6D0, 0x1F6D2}, {0x1F6D5, 0x1F6DF}, {0x1F6EB, 0x1F6EC}, {0x1F6F4, 0x1F6FC},
    {0x1F7E0, 0x1F7F0}, {0x1F90C, 0x1F93A}, {0x1F93C, 0x1F945}, {0x1F947, 0x1F9FF}, {0x1FA70, 0x1FAF6},
    {0x20000, 0x3134A}};

// Marks that are drawn on the character before them, joiners and direction marks: no column.
constexpr CodeRange kZeroWidth[] = {{0x300, 0x36F},   {0x483, 0x489},   {0x591, 0x5BD},    {0x610, 0x61A},
                                    {0x64B, 0x65F},   {0x93C, 0x93C},   {0x941, 0x948},    {0x94D, 0x94D},
                                    {0xE31, 0xE31},   {0xE34, 0xE3A},   {0xE47, 0xE4E},    {0x1AB0, 0x1AFF},
                                    {0x1DC0, 0x1DFF}, {0x200B, 0x200F}, {0x202A, 0x202E},  {0x2060, 0x2064},
                                    {0x20D0, 0x20FF}, {0x302A, 0x302D}, {0x3099, 0x309A},  {0xFE00, 0xFE0F},
                                    {0xFE20, 0xFE2F}, {0xFEFF, 0xFEFF}, {0xE0100, 0xE01EF}};

bool contains(std::span<const CodeRange> ranges, char32_t code) {
  const auto after = std::ranges::upper_bound(ranges, code, {}, &CodeRange::first);
  return after != ranges.begin() && code <= std::prev(after)->last;
}

}  // namespace

std::size_t display_width(std::string_view text) {
  std::size_t width = 0;
  const char *at = text.data(), *end = at + text.size();
  while (at != end) {
    const char* ascii_end = skip_ascii(at, end);
    width += static_cast<std::size_t>(ascii_end - at);
    if ((at = ascii_end) == end) break;
    const Utf8Char character = decode_utf8(at, end);
    at += character.bytes;
    if (!contains(kZeroWidth, character.code)) width += contains(kWide, character.code) ? 2 : 1;
  }
  return width;
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
