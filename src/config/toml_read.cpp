// Reads TOML, for config/toml.h. The browser's runtime has a smaller reader (wasm/platform.cpp),
// which needs no toml++.
#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "config/toml.h"

namespace thimble {

namespace {

constexpr std::size_t kShown = 80;  // bytes of file content quoted in a message

[[noreturn]] void fail_not_one_value(std::string_view key, std::string_view found, std::string_view name,
                                     std::uint32_t line) {
  fail(Hint{"write settings as lines: key = value"}, "{}:{}: {} is {}, expected one value", name, line,
       key.substr(0, kShown), found);
}

KeyValue value_of(const toml::node& node, std::string_view key, std::string_view name) {
  if (const auto* whole = node.as_integer()) return whole->get();
  if (const auto* real = node.as_floating_point()) return real->get();
  if (const auto* flag = node.as_boolean()) return flag->get();
  if (const auto* text = node.as_string()) return text->get();
  fail_not_one_value(key, node.is_table() ? "a table" : "a date", name, node.source().begin.line);
}

// Index of the first of `characters` outside quotes, or the size of the line.
std::size_t find_unquoted(std::string_view line, std::string_view characters) {
  char quote = '\0';
  for (std::size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (quote == '"' && c == '\\')
      ++i;
    else if (quote)
      quote = c == quote ? '\0' : quote;
    else if (c == '"' || c == '\'')
      quote = c;
    else if (characters.find(c) != characters.npos)
      return i;
  }
  return line.size();
}

void refuse_key_of_parts(std::string_view key, std::string_view name, std::uint32_t line) {
  const std::size_t dot = find_unquoted(key, ".");
  if (dot < key.size()) fail_not_one_value(trim(key.substr(0, dot)), "a table", name, line);
}

void refuse_value_of_words(std::string_view key, std::string_view value, std::string_view name,
                           std::uint32_t line) {
  const std::string_view words = trim(value);
  const bool quoted = words.starts_with('"') || words.starts_with('\'');
  if (!quoted && words.find_first_of(" \t") != words.npos)
    fail_not_one_value(trim(key), "several words", name, line);
}

// toml++ 3 fails on some malformed tables and lists, on dates followed by a space, on some
// non-ASCII characters, and overflows the stack on keys with very many parts (a.b.c). Settings need
// none of these, so they are rejected before parsing; non-ASCII characters, which comments may
// contain, are replaced.
std::string plain_lines(std::string_view toml, std::string_view name) {
  std::uint32_t number = 1;
  for (std::string_view rest = toml; !rest.empty(); ++number) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view code = rest.substr(0, find_unquoted(rest.substr(0, end), "#"));
    rest.remove_prefix(std::min(end + 1, rest.size()));
    const std::size_t bracket = code.find_first_of("[{");
    if (bracket == code.npos) {
      const std::size_t equals = find_unquoted(code, "=");
      if (equals < code.size()) {
        refuse_key_of_parts(code.substr(0, equals), name, number);
        refuse_value_of_words(code.substr(0, equals), code.substr(equals + 1), name, number);
      }
      continue;
    }
    const bool header = code.find_first_not_of(" \t") == bracket;  // of a table: [model]
    const std::string_view key = header ? code.substr(bracket) : code.substr(0, code.find('='));
    const std::size_t first = std::min(key.find_first_not_of("[{ \t"), key.size());
    fail_not_one_value(key.substr(first, key.find_last_not_of("]}= \t\r") + 1 - first),
                       header || code[bracket] == '{' ? "a table" : "a list", name, number);
  }
  std::string text(toml);
  for (char& c : text)
    if (static_cast<unsigned char>(c) >= 0x80) c = '?';
  return text;
}

}  // namespace

std::vector<Setting> parse_settings(std::string_view toml, std::string_view name) {
  if (toml.starts_with(kByteOrderMark)) toml.remove_prefix(kByteOrderMark.size());
  toml::table table;
  try {
    table = toml::parse(plain_lines(toml, name), name);
  } catch (const toml::parse_error& error) {  // translate the exception of the library
    fail("{}:{}: {}", name, error.source().begin.line, error.description().substr(0, 200));
  }
  std::vector<Setting> settings;
  for (const auto& [key, node] : table)
    settings.push_back({std::string(key.str()), value_of(node, key.str(), name), node.source().begin.line});
  std::stable_sort(settings.begin(), settings.end(),
                   [](const Setting& a, const Setting& b) { return a.line < b.line; });
  return settings;
}

namespace {

// Reads a file of sections line by line. Numbers and flags are left to parse_settings().
class SectionReader {
 public:
  SectionReader(std::string_view toml, std::string_view name) : rest_(toml), name_(name) {}

  std::vector<TomlSection> read() {
    while (next_line()) {
      if (code_.empty()) continue;
      if (code_.starts_with('['))
        start_section();
      else {
        TomlSection& section = current();
        section.entries.push_back(entry());
      }
    }
    return std::move(sections_);
  }

 private:
  // Moves to the next line, without its comment and blanks around it.
  bool next_line() {
    if (rest_.empty()) return false;
    const std::size_t end = std::min(rest_.find('\n'), rest_.size());
    const std::string_view line = rest_.substr(0, end);
    code_ = trim(line.substr(0, find_unquoted(line, "#")));
    rest_.remove_prefix(std::min(end + 1, rest_.size()));
    ++line_;
    return true;
  }

  void start_section() {
    const std::string_view section = trim(code_.substr(1, std::max<std::size_t>(code_.size(), 2) - 2));
    if (!code_.ends_with(']') || section.empty() || section.find_first_of("[]\"'") != section.npos)
      fail(Hint{"write sections as [name]"}, "{}:{}: '{}' is not a section", name_, line_,
           code_.substr(0, kShown));
    for (const TomlSection& earlier : sections_)
      check(earlier.name != section, "{}:{}: section [{}] occurs twice, first on line {}", name_, line_,
            section.substr(0, kShown), earlier.line);
    sections_.push_back({std::string(section), line_});
  }

  TomlSection& current() {
    if (sections_.empty())
      fail(Hint{"begin the file with a section such as [base]"}, "{}:{}: a setting outside of a section",
           name_, line_);
    return sections_.back();
  }

  TomlEntry entry() {
    const std::size_t equals = find_unquoted(code_, "=");
    if (equals == code_.size())
      fail(Hint{"write settings as lines: key = value"}, "{}:{}: '{}' is not a setting", name_, line_,
           code_.substr(0, kShown));
    TomlEntry entry{.key = std::string(trim(code_.substr(0, equals))), .values = {}, .line = line_};
    refuse_key_of_parts(entry.key, name_, line_);
    for (const TomlEntry& earlier : sections_.back().entries)
      check(earlier.key != entry.key, "{}:{}: {} occurs twice, first on line {}", name_, line_,
            entry.key.substr(0, kShown), earlier.line);
    const std::string_view value = trim(code_.substr(equals + 1));
    if (value.starts_with('[')) {
      entry.is_list = true;
      add_list(value.substr(1), entry);
    } else {
      entry.values.push_back(scalar(value, entry));
    }
    return entry;
  }

  // `text`: what follows the opening bracket.
  void add_list(std::string_view text, TomlEntry& entry) {
    bool closed = false;
    while (!closed) {
      const std::size_t end = find_unquoted(text, ",]");
      const std::string_view item = trim(text.substr(0, end));
      closed = end < text.size() && text[end] == ']';
      if (!item.empty())
        entry.values.push_back(scalar(item, entry));
      else if (end < text.size() && !closed)
        fail("{}:{}: the list of {} has an empty item", name_, line_, entry.key);
      if (end < text.size()) {
        text.remove_prefix(end + 1);
      } else {
        check(next_line(), "{}:{}: the list of {} has no closing bracket", name_, entry.line, entry.key);
        text = code_;
      }
    }
    check(trim(text).empty(), "{}:{}: '{}' follows the list of {}", name_, line_, text.substr(0, kShown),
          entry.key);
  }

  KeyValue scalar(std::string_view text, const TomlEntry& entry) const {
    if (text.starts_with('"') || text.starts_with('\'')) return quoted(text, entry);
    // The error of the parser then has the right line number.
    const std::string lines = std::string(line_ - 1, '\n') + fmt::format("{} = {}", entry.key, text);
    return parse_settings(lines, name_).at(0).value;
  }

  // Paths may contain any character, which toml++ does not read reliably.
  std::string quoted(std::string_view text, const TomlEntry& entry) const {
    std::string out;
    std::size_t i = 1;
    for (; i < text.size() && text[i] != text[0]; ++i) {
      if (text[0] == '"' && text[i] == '\\' && i + 1 < text.size()) {
        ++i;
        check(text[i] == '"' || text[i] == '\\', Hint{"write it in single quotes"},
              "{}:{}: {} has the escape '\\{}', which is not supported", name_, line_, entry.key, text[i]);
      }
      out += text[i];
    }
    check(i + 1 == text.size(), "{}:{}: {} is {}, expected text in quotes", name_, line_, entry.key,
          text.substr(0, kShown));
    return out;
  }

  std::string_view rest_, name_, code_;
  std::uint32_t line_ = 0;
  std::vector<TomlSection> sections_;
};

}  // namespace

std::vector<TomlSection> parse_sections(std::string_view toml, std::string_view name) {
  if (toml.starts_with(kByteOrderMark)) toml.remove_prefix(kByteOrderMark.size());
  return SectionReader(toml, name).read();
}

}  // namespace thimble
