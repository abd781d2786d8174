#include "data/markup.h"

#include <algorithm>
#include <array>
#include <set>

#include "base/text.h"
#include "base/utf8.h"

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

// A line of marks only, at least three: "---", "***", "===", "|---|:--:|".
bool is_rule(std::string_view line) {
  const std::string_view text = trimmed(line);
  const bool marks = text.find_first_not_of("-*_=|: ") == text.npos;
  return marks && std::ranges::count_if(
                      text, [](char c) { return c == '-' || c == '*' || c == '_' || c == '='; }) >= 3;
}

// Removes heading, quote and bullet marks ("## ", "> ", "- ") and appends the indentation to `out`.
std::string_view remove_line_marks(std::string_view line, std::string& out) {
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
  std::size_t end = 0;  // index after the link; 0: not a link
};

// Parses "[text](address)" at the start of `line`. The limits on length and nesting bound the time,
// because every '[' of a line is tried.
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

// Length of a run of emphasis marks ("**", "_", "`", "~~") at `at`, or 0 if the marks are literal,
// as in "2 * 3" and "snake_case".
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
      append_plain(remove_line_marks(line, out), out);
    }
    if (newline) out += '\n';
  }
  return out;
}

namespace {

// The end of a front matter ("---" .. "---" or "+++" .. "+++" at the start of the file); 0 if there
// is none.
std::size_t front_matter_end(std::string_view text) {
  const std::string_view mark = text.substr(0, 3);
  if (mark != "---" && mark != "+++") return 0;
  for (std::size_t begin = 0, line_number = 0; begin < text.size(); ++line_number) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = trim_right(text.substr(begin, end - begin));
    begin = std::min(end + 1, text.size());
    if (line_number == 0 && line != mark) return 0;
    if (line_number > 0 && (line == mark || (mark == "---" && line == "..."))) return begin;
  }
  return 0;
}

// "[name]: http://..", which defines the address of a link.
bool is_link_definition(std::string_view line) {
  const std::string_view text = trimmed(line);
  const std::size_t close = text.find("]:");
  return text.starts_with('[') && !text.starts_with("[^") && close != text.npos && close > 1 &&
         text.find('[', 1) > close && close + 2 < text.size();
}

// The length of a tag or an address in angle brackets at `at`; 0 if there is none.
constexpr std::size_t kMaxTagBytes = 2000;  // also of a code span; bounds the time
std::size_t tag_at(std::string_view line, std::size_t at) {
  std::size_t name = at + 1;
  if (name < line.size() && line[name] == '/') ++name;
  if (name >= line.size() || !((line[name] | 0x20) >= 'a' && (line[name] | 0x20) <= 'z')) return 0;
  const std::size_t end = line.substr(0, at + kMaxTagBytes).find_first_of("<>", at + 1);
  return end == line.npos || line[end] == '<' ? 0 : end + 1 - at;
}

// Removes comments, tags and the addresses of links. `in_comment` is the state between lines.
void append_without_addresses(std::string_view line, bool& in_comment, std::string& out) {
  for (std::size_t at = 0; at < line.size();) {
    if (in_comment) {
      const std::size_t end = line.find("-->", at);
      if (end == line.npos) return;
      in_comment = false;
      at = end + 3;
      continue;
    }
    const char c = line[at];
    if (line.substr(at).starts_with("<!--")) {
      in_comment = true;
      at += 4;
      continue;
    }
    if (c == '`') {  // a code span ends with as many backticks; its content stays
      const std::size_t run = std::min(line.find_first_not_of('`', at), line.size()) - at;
      const std::size_t end = line.substr(0, at + kMaxTagBytes).find(std::string(run, '`'), at + run);
      const std::size_t next = end == line.npos ? at + run : end + run;
      out += line.substr(at, next - at);
      at = next;
      continue;
    }
    if (c == '\\' && at + 1 < line.size()) {
      out += line.substr(at, 2);
      at += 2;
      continue;
    }
    if (c == '<')
      if (const std::size_t length = tag_at(line, at)) {
        at += length;
        continue;
      }
    const std::size_t image = line.substr(at).starts_with("![") ? 1 : 0;
    if (c == '[' || image)
      if (const Link link = link_at(line.substr(at + image)); link.end > 0) {
        append_without_addresses(link.text, in_comment, out);
        at += image + link.end;
        continue;
      }
    out += c;
    ++at;
  }
}

}  // namespace

std::string markdown_text(std::string_view text) {
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  text.remove_prefix(front_matter_end(text));
  std::string out, plain;
  out.reserve(text.size());
  bool in_code = false, in_comment = false;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    const bool newline = end < text.size();
    text.remove_prefix(newline ? end + 1 : end);
    const bool fence = !in_comment && is_fence(line);
    if (fence) in_code = !in_code;
    if (fence || in_code) {
      out += line;
    } else {
      if (!in_comment && is_link_definition(line)) continue;
      plain.clear();
      append_without_addresses(line, in_comment, plain);
      const bool emptied = trim(plain).empty() && !trim(line).empty();
      if (emptied) continue;  // a comment or a picture had the line to itself
      out += plain;
    }
    if (newline) out += '\n';
  }
  return out;
}

namespace {

constexpr std::string_view kLatin1Names[] = {
    "nbsp",   "iexcl",  "cent",   "pound",  "curren", "yen",    "brvbar", "sect",   "uml",    "copy",
    "ordf",   "laquo",  "not",    "shy",    "reg",    "macr",   "deg",    "plusmn", "sup2",   "sup3",
    "acute",  "micro",  "para",   "middot", "cedil",  "sup1",   "ordm",   "raquo",  "frac14", "frac12",
    "frac34", "iquest", "Agrave", "Aacute", "Acirc",  "Atilde", "Auml",   "Aring",  "AElig",  "Ccedil",
    "Egrave", "Eacute", "Ecirc",  "Euml",   "Igrave", "Iacute", "Icirc",  "Iuml",   "ETH",    "Ntilde",
    "Ograve", "Oacute", "Ocirc",  "Otilde", "Ouml",   "times",  "Oslash", "Ugrave", "Uacute", "Ucirc",
    "Uuml",   "Yacute", "THORN",  "szlig",  "agrave", "aacute", "acirc",  "atilde", "auml",   "aring",
    "aelig",  "ccedil", "egrave", "eacute", "ecirc",  "euml",   "igrave", "iacute", "icirc",  "iuml",
    "eth",    "ntilde", "ograve", "oacute", "ocirc",  "otilde", "ouml",   "divide", "oslash", "ugrave",
    "uacute", "ucirc",  "uuml",   "yacute", "thorn",  "yuml"};

struct Entity {
  std::string_view name;
  char32_t code;
};
constexpr Entity kEntities[] = {
    {"quot", '"'},      {"amp", '&'},       {"lt", '<'},        {"gt", '>'},        {"apos", '\''},
    {"OElig", 0x152},   {"oelig", 0x153},   {"Scaron", 0x160},  {"scaron", 0x161},  {"Yuml", 0x178},
    {"fnof", 0x192},    {"circ", 0x2C6},    {"tilde", 0x2DC},   {"ensp", ' '},      {"emsp", ' '},
    {"thinsp", ' '},    {"ndash", 0x2013},  {"mdash", 0x2014},  {"lsquo", 0x2018},  {"rsquo", 0x2019},
    {"sbquo", 0x201A},  {"ldquo", 0x201C},  {"rdquo", 0x201D},  {"bdquo", 0x201E},  {"dagger", 0x2020},
    {"Dagger", 0x2021}, {"bull", 0x2022},   {"hellip", 0x2026}, {"permil", 0x2030}, {"prime", 0x2032},
    {"Prime", 0x2033},  {"lsaquo", 0x2039}, {"rsaquo", 0x203A}, {"euro", 0x20AC},   {"trade", 0x2122},
    {"larr", 0x2190},   {"uarr", 0x2191},   {"rarr", 0x2192},   {"darr", 0x2193},   {"harr", 0x2194},
    {"minus", 0x2212},  {"infin", 0x221E},  {"asymp", 0x2248},  {"ne", 0x2260},     {"le", 0x2264},
    {"ge", 0x2265},     {"alpha", 0x3B1},   {"beta", 0x3B2},    {"gamma", 0x3B3},   {"delta", 0x3B4},
    {"epsilon", 0x3B5}, {"lambda", 0x3BB},  {"mu", 0x3BC},      {"pi", 0x3C0},      {"sigma", 0x3C3},
    {"omega", 0x3C9},   {"Delta", 0x394},   {"Sigma", 0x3A3},   {"Omega", 0x3A9},   {"zwnj", 0x200C},
    {"zwj", 0x200D},    {"lrm", 0x200E},    {"rlm", 0x200F}};

constexpr char32_t kNoBreakSpace = 0xA0, kSoftHyphen = 0xAD;

// The character of "#8211", "#x2013" or "ndash"; 0 if the name is not known.
char32_t entity_code(std::string_view name) {
  if (name.starts_with('#')) {
    name.remove_prefix(1);
    const bool hexadecimal = name.starts_with('x') || name.starts_with('X');
    if (hexadecimal) name.remove_prefix(1);
    std::uint32_t code = 0;
    const auto [end, error] =
        std::from_chars(name.data(), name.data() + name.size(), code, hexadecimal ? 16 : 10);
    const bool valid = error == std::errc() && end == name.data() + name.size() && code > 0 &&
                       code < 0x110000 && (code < 0xD800 || code > 0xDFFF);
    return valid ? code : 0;
  }
  if (const auto found = std::ranges::find(kEntities, name, &Entity::name); found != std::end(kEntities))
    return found->code;
  const auto found = std::ranges::find(kLatin1Names, name);
  return found == std::end(kLatin1Names) ? 0 : kNoBreakSpace + static_cast<char32_t>(found - kLatin1Names);
}

bool is_one_of(std::string_view name, std::span<const std::string_view> names) {
  return std::ranges::find(names, name) != names.end();
}

// Elements whose content is not text.
constexpr std::string_view kRemoved[] = {"head",   "script", "style", "template", "noscript", "svg",
                                         "iframe", "object", "audio", "video",    "canvas",   "math"};
// Blocks with an empty line before and after them, and blocks that only end lines.
constexpr std::string_view kParagraphs[] = {
    "p",      "h1",     "h2",    "h3",   "h4",         "h5",       "h6",      "ul",      "ol",
    "dl",     "table",  "pre",   "hr",   "blockquote", "main",     "nav",     "section", "article",
    "header", "footer", "aside", "form", "figure",     "fieldset", "details", "address"};
constexpr std::string_view kLines[] = {"div",     "li",         "dt",    "dd",      "tr",
                                       "caption", "figcaption", "body",  "summary", "option",
                                       "html",    "optgroup",   "legend"};

class HtmlText {
 public:
  explicit HtmlText(std::string_view html) : html_(html) {}

  std::string text() {
    while (at_ < html_.size()) {
      const char c = html_[at_];
      if (c == '<' && read_tag()) continue;
      if (c == '&' && read_entity()) continue;
      ++at_;
      if (in_pre_ > 0 && c == '\n')
        break_line();
      else if (kBlanks.find(c) != kBlanks.npos && in_pre_ == 0)
        space_ = true;
      else if (c != '\r')
        put(std::string_view(&c, 1));
    }
    if (!out_.empty()) out_ += '\n';
    return std::move(out_);
  }

 private:
  void put(std::string_view text) {
    if (newlines_ > 0 && !out_.empty()) {
      out_.resize(trim_right(out_).size());
      out_.append(newlines_, '\n');
    } else if (space_ && !out_.empty()) {
      out_ += ' ';
    }
    newlines_ = 0;
    space_ = false;
    out_ += text;
  }

  // Ends the line, and leaves empty ones if there are at least two line ends.
  void end_line(std::size_t newlines) { newlines_ = std::max(newlines_, newlines); }
  void break_line() { newlines_ = std::min<std::size_t>(newlines_ + 1, 2); }

  bool read_entity() {
    constexpr std::size_t kLongestName = 10;
    const std::size_t end = html_.substr(0, at_ + kLongestName + 2).find(';', at_);
    if (end == html_.npos) return false;
    const char32_t code = entity_code(html_.substr(at_ + 1, end - at_ - 1));
    if (code == 0) return false;
    at_ = end + 1;
    if (code == kNoBreakSpace) {
      space_ = true;
    } else if (code != kSoftHyphen) {
      std::string text;
      append_utf8(text, code);
      put(text);
    }
    return true;
  }

  // The position after the '>' of the tag, in which quoted values may contain '>'.
  std::size_t tag_end(std::size_t from) {
    for (std::size_t at = from; quotes_count_ && at < html_.size(); ++at) {
      if (html_[at] == '>') return at + 1;
      if (html_[at] == '"' || html_[at] == '\'') {
        const bool value = html_[trim_right(html_.substr(from, at - from)).size() + from - 1] == '=';
        if (!value) continue;
        at = html_.find(html_[at], at + 1);
        if (at == html_.npos) break;
      }
    }
    // A quote is missing. Quotes are ignored from here on, so that each part is read once.
    quotes_count_ = false;
    const std::size_t end = html_.find('>', from);
    return end == html_.npos ? html_.size() : end + 1;
  }

  bool skip_to(std::string_view mark, std::size_t from) {
    const std::size_t end = html_.find(mark, from);
    at_ = end == html_.npos ? html_.size() : end + mark.size();
    return true;
  }

  // Whether there is a tag at at_, which is then read.
  bool read_tag() {
    const std::string_view rest = html_.substr(at_);
    if (rest.starts_with("<!--")) return skip_to("-->", at_ + 4);
    if (rest.starts_with("<!") || rest.starts_with("<?")) return skip_to(">", at_ + 2);
    const bool closes = rest.starts_with("</");
    const std::size_t begin = at_ + (closes ? 2 : 1);
    std::size_t end = begin;
    while (end < html_.size() && is_ascii_alnum(html_[end])) ++end;
    if (end == begin || (html_[begin] >= '0' && html_[begin] <= '9')) return false;
    const std::string name = lower_case(html_.substr(begin, std::min<std::size_t>(end - begin, 16)));
    at_ = tag_end(end);
    const bool empty = html_[at_ - 1] == '>' && html_[at_ - 2] == '/';
    if (!closes && !empty && is_one_of(name, kRemoved)) {
      skip_content(name);
    } else if (name == "br") {
      break_line();
    } else if (name == "td" || name == "th") {
      space_ = true;
    } else if (is_one_of(name, kParagraphs)) {
      end_line(2);
      if (name == "pre") in_pre_ = closes ? 0 : 1;
    } else if (is_one_of(name, kLines)) {
      end_line(1);
    }
    return true;
  }

  // Skips to the end of an element. One that does not end is not skipped.
  void skip_content(const std::string& name) {
    if (unclosed_.contains(name)) return;
    for (std::size_t at = at_; (at = html_.find("</", at)) != html_.npos; at += 2) {
      const std::string_view found = html_.substr(at + 2, name.size());
      const std::size_t end = at + 2 + name.size();
      if (lower_case(found) != name || (end < html_.size() && is_ascii_alnum(html_[end]))) continue;
      at_ = std::min(html_.find('>', end), html_.size() - 1) + 1;
      return;
    }
    unclosed_.insert(name);
  }

  std::string_view html_;
  std::string out_;
  std::size_t at_ = 0, newlines_ = 0;
  bool space_ = false, quotes_count_ = true;
  int in_pre_ = 0;
  std::set<std::string> unclosed_;  // elements that do not end after at_
};

class TextInMemory final : public ByteStream {
 public:
  TextInMemory(std::string text, std::uint64_t stored) : text_(std::move(text)), stored_(stored) {}

  std::size_t read(std::span<char> buffer) override {
    const std::size_t count = std::min(buffer.size(), text_.size() - at_);
    std::copy_n(text_.begin() + static_cast<std::ptrdiff_t>(at_), count, buffer.begin());
    at_ += count;
    return count;
  }
  std::uint64_t stored_bytes_read() const override {
    if (at_ == text_.size()) return stored_;
    return static_cast<std::uint64_t>(static_cast<double>(stored_) * static_cast<double>(at_) /
                                      static_cast<double>(text_.size()));
  }

 private:
  std::string text_;
  std::uint64_t stored_;
  std::size_t at_ = 0;
};

std::unique_ptr<ByteStream> converted(const std::filesystem::path& file,
                                      std::string (*convert)(std::string_view)) {
  return std::make_unique<TextInMemory>(convert(read_text_file(file)), InputFile(file).size());
}

}  // namespace

std::string html_text(std::string_view html) {
  if (html.starts_with(kByteOrderMark)) html.remove_prefix(kByteOrderMark.size());
  return HtmlText(html).text();
}

std::unique_ptr<ByteStream> open_markdown(const std::filesystem::path& file) {
  return converted(file, markdown_text);
}

std::unique_ptr<ByteStream> open_html(const std::filesystem::path& file) {
  return converted(file, html_text);
}

}  // namespace thimble
