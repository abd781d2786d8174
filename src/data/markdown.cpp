#include "data/markdown.h"

#include <algorithm>
#include <array>

namespace thimble {

namespace {

bool is_space(char c) {
  return c == ' ' || c == '\t';
}

bool is_word(char c) {
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c & 0x80) != 0;
}

std::string_view trimmed(std::string_view line) {
  while (!line.empty() && is_space(line.front())) line.remove_prefix(1);
  while (!line.empty() && (is_space(line.back()) || line.back() == '\r')) line.remove_suffix(1);
  return line;
}

bool is_fence(std::string_view line) {
  const std::string_view text = trimmed(line);
  return text.starts_with("```") || text.starts_with("~~~");
}

// "---", "***", "===", "|---|:--:|": nothing but marks, at least three.
bool is_rule(std::string_view line) {
  const std::string_view text = trimmed(line);
  const bool marks = text.find_first_not_of("-*_=|: ") == text.npos;
  return marks && std::ranges::count_if(
                      text, [](char c) { return c == '-' || c == '*' || c == '_' || c == '='; }) >= 3;
}

// "## ", "> ", "- ": taken off the front, with the indentation kept.
std::string_view without_marks_before(std::string_view line, std::string& out) {
  while (true) {
    std::size_t at = 0;
    while (at < line.size() && is_space(line[at])) ++at;
    const std::string_view rest = line.substr(at);
    const std::size_t hashes = std::min(rest.find_first_not_of('#'), rest.size());
    const bool heading = hashes >= 1 && hashes <= 6 && (hashes == rest.size() || is_space(rest[hashes]));
    const bool quote = rest.starts_with('>');
    const bool bullet =
        rest.size() >= 2 && (rest[0] == '-' || rest[0] == '*' || rest[0] == '+') && is_space(rest[1]);
    if (!heading && !quote && !bullet) return line;
    out += line.substr(0, at);
    line = rest.substr(heading ? hashes : 1);
    if (!line.empty() && is_space(line.front())) line.remove_prefix(1);
  }
}

struct Link {
  std::string_view text;
  std::size_t end = 0;  // behind it; 0: this is none
};

// "[text](address)" at the start. Longer ones are none, nor are those with more brackets inside: looking for their end
// from every bracket of a line would take for ever.
Link link_at(std::string_view line) {
  constexpr std::size_t kMaxLinkBytes = 2000, kMaxNesting = 16;
  line = line.substr(0, kMaxLinkBytes);
  std::size_t depth = 0, close = 0;
  for (; close < line.size(); ++close) {
    if (line[close] == '[' && ++depth > kMaxNesting) return {};
    if (line[close] == ']' && --depth == 0) break;
  }
  if (close + 1 >= line.size() || line[close + 1] != '(') return {};
  const std::size_t end = line.find(')', close + 1);
  return end == line.npos ? Link{} : Link{line.substr(1, close - 1), end + 1};
}

// The length of a run of emphasis marks ("**", "_", "`", "~~") that is one: not "2 * 3", not "snake_case".
std::size_t emphasis_at(std::string_view line, std::size_t at) {
  const char mark = line[at];
  if (mark != '*' && mark != '_' && mark != '`' && mark != '~') return 0;
  std::size_t end = at;
  while (end < line.size() && line[end] == mark) ++end;
  if (mark == '`') return end - at;
  if (mark == '~' && end - at != 2) return 0;
  const bool word_before = at > 0 && is_word(line[at - 1]),
             word_after = end < line.size() && is_word(line[end]);
  const bool space_before = at == 0 || is_space(line[at - 1]);
  const bool space_after = end == line.size() || is_space(line[end]);
  if (space_before && space_after) return 0;
  if (mark == '_' && word_before && word_after) return 0;
  return end - at;
}

void append_plain(std::string_view line, std::string& out) {
  constexpr std::string_view kEscapable = "\\`*_{}[]()#+-.!|>~";
  for (std::size_t at = 0; at < line.size();) {
    const char c = line[at];
    if (c == '\\' && at + 1 < line.size() && kEscapable.find(line[at + 1]) != kEscapable.npos) {
      out += line[at + 1];
      at += 2;
      continue;
    }
    const std::size_t image = c == '!' && at + 1 < line.size() && line[at + 1] == '[' ? 1 : 0;
    if (c == '[' || image) {
      if (const Link link = link_at(line.substr(at + image)); link.end > 0) {
        append_plain(link.text, out);
        at += image + link.end;
        continue;
      }
    }
    if (const std::size_t marks = emphasis_at(line, at)) {
      at += marks;
      continue;
    }
    out += c;
    ++at;
  }
}

void append_table_row(std::string_view line, std::string& out) {
  std::string_view row = trimmed(line);
  row.remove_prefix(1);
  if (row.ends_with('|')) row.remove_suffix(1);
  while (true) {
    const std::size_t bar = std::min(row.find('|'), row.size());
    append_plain(trimmed(row.substr(0, bar)), out);
    if (bar == row.size()) return;
    out += ' ';
    row.remove_prefix(bar + 1);
  }
}

}  // namespace

bool ends_in_code(std::string_view text, bool in_code) {
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    if (is_fence(text.substr(0, end))) in_code = !in_code;
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return in_code;
}

std::string strip_markdown(std::string_view text, bool in_code) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    const bool newline = end < text.size();
    text.remove_prefix(newline ? end + 1 : end);
    if (is_fence(line)) {
      in_code = !in_code;
      continue;
    }
    if (in_code) {
      out += line;
    } else if (is_rule(line)) {
      continue;
    } else if (trimmed(line).starts_with('|') && trimmed(line).size() > 1) {
      append_table_row(line, out);
    } else {
      append_plain(without_marks_before(line, out), out);
    }
    if (newline) out += '\n';
  }
  return out;
}

}  // namespace thimble
