#include "config/toml.h"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "config/builder.h"

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

std::string toml_line(const Key& key, const Config& config) {
  const std::string text = value_text(key.get(config));
  return key.type == KeyType::choice ? fmt::format("{} = \"{}\"\n", key.name, text)
                                     : fmt::format("{} = {}\n", key.name, text);
}

std::string toml_lines(const Config& config, bool of_model) {
  std::string text = of_model ? "# model\n" : "# training\n";
  for (const Key& key : all_keys())
    if (key.of_model() == of_model) text += toml_line(key, config);
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

std::string to_toml(const Config& config) {
  return toml_lines(config, true) + "\n" + toml_lines(config, false);
}

std::string to_toml(const ModelConfig& config) {
  return toml_lines({.model = config}, true);
}

Config config_from_toml(std::string_view toml, std::string_view name) {
  if (toml.starts_with(kByteOrderMark)) toml.remove_prefix(kByteOrderMark.size());
  check(std::ranges::all_of(toml, [](char c) { return static_cast<unsigned char>(c) < 0x80; }),
        "{}: expected plain ASCII", name);
  ConfigBuilder settings;
  settings.toml(toml, name);
  return resolved(settings.current());  // a run without steps can be read
}

Json to_json(const Config& config) {
  Json object = Json::object();
  for (const Key& key : all_keys())
    std::visit([&](const auto& value) { object.set(std::string(key.name), value); }, key.get(config));
  return object;
}

}  // namespace thimble
