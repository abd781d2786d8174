// Aligned tables, number formatting and sparklines for terminal output.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace thimble {

// Columns are as wide as their widest cell. Numeric columns are right-aligned, all others
// left-aligned.
//
//   Table table({"tensor", "rows", "columns"});
//   table.row({"tok_emb.weight", "1024", "512"});
//   table.text();
class Table {
 public:
  explicit Table(std::vector<std::string> headings = {}) : headings_(std::move(headings)) {}

  void row(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  // Ends with a newline unless empty. If lines would be longer than `width` (0: no limit), text
  // columns are wrapped at words.
  std::string text(std::size_t width = 0) const;

 private:
  std::vector<std::string> headings_;
  std::vector<std::vector<std::string>> rows_;
};

// The number of terminal columns of a UTF-8 text: two for each wide character (Chinese, emoji),
// none for a combining mark, one for any other character or invalid byte.
std::size_t display_width(std::string_view text);

// The text cut to at most `most_bytes` bytes at a character boundary, with " ..." appended if it
// was cut.
std::string shortened(std::string text, std::size_t most_bytes);

// 1234567 -> "1,234,567"
std::string with_commas(long long value);

// 17059912 -> "17.1 M", 1536 -> "1.54 k"
std::string with_unit(double value);

// 123456789 -> "117.7 MiB"
std::string in_bytes(double bytes);

// 75 -> "1m 15s", 0.0123 -> "12.3 ms"
std::string in_seconds(double seconds);

// One bar of eight heights per value, scaled to the range of the finite values. More than `width`
// values are averaged in equal buckets. Non-finite values are shown as '!'.
std::string sparkline(std::span<const double> values, std::size_t width = 40);

}  // namespace thimble
