#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "base/nearest.h"
#include "base/number.h"
#include "model/config_keys.h"

namespace thimble {

namespace {

// "a whole number from 1 to 1024", "rms, rms_weight or layer"
std::string expected(const Key& key) {
  switch (key.type) {
    case KeyType::integer:
      return fmt::format("a whole number from {} to {}", std::int64_t(key.least), std::int64_t(key.most));
    case KeyType::number:
      return fmt::format("a number from {} to {}", key.least, key.most);
    case KeyType::flag:
      return "true or false";
    case KeyType::choice:
      break;
  }
  std::string text;
  for (std::size_t i = 0; i < key.choices.size(); ++i)
    text += fmt::format("{}{}", i == 0 ? "" : i + 1 == key.choices.size() ? " or " : ", ", key.choices[i]);
  return text;
}

[[noreturn]] void refuse(const Key& key, std::string_view found, std::string_view where) {
  const std::string_view best = nearest(found, key.choices);
  fail(best.empty() ? Hint{} : Hint{fmt::format("did you mean {}?", best)}, "{}{} takes {}, found '{}'",
       where, key.name, expected(key), found.substr(0, 80));
}

// nullopt: the value is of another kind. Whole numbers are numbers too.
std::optional<KeyValue> in_type_of(const Key& key, const KeyValue& value) {
  switch (key.type) {
    case KeyType::integer:
      if (std::holds_alternative<std::int64_t>(value)) return value;
      return std::nullopt;
    case KeyType::number:
      if (const auto* whole = std::get_if<std::int64_t>(&value)) return KeyValue(static_cast<double>(*whole));
      if (std::holds_alternative<double>(value)) return value;
      return std::nullopt;
    case KeyType::flag:
      if (std::holds_alternative<bool>(value)) return value;
      return std::nullopt;
    case KeyType::choice:
      if (const auto* text = std::get_if<std::string>(&value))
        if (std::find(key.choices.begin(), key.choices.end(), *text) != key.choices.end()) return value;
      return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace

KeyValue checked_value(const Key& key, const KeyValue& value, std::string_view where) {
  const std::optional<KeyValue> typed = in_type_of(key, value);
  if (!typed) refuse(key, value_text(value), where);
  const auto* whole = std::get_if<std::int64_t>(&*typed);
  const auto* real = std::get_if<double>(&*typed);
  if (!whole && !real) return *typed;
  const double number = whole ? static_cast<double>(*whole) : *real;
  check(!(number < 0 && key.least == 0), "{}{} must not be negative, found {}", where, key.name,
        value_text(value));
  // Written so that NaN is refused.
  if (!(number >= key.least && number <= key.most)) refuse(key, value_text(value), where);
  return *typed;
}

void check_values(const Config& config, bool training) {
  for (const Key& key : all_keys())
    if (key.training == training) checked_value(key, key.get(config), "");
}

KeyValue value_from_text(const Key& key, std::string_view text, std::string_view where) {
  KeyValue value = std::string(text);
  std::string digits(text);  // 524_288 is how TOML may write 524288
  std::erase(digits, '_');
  const bool wants_number = key.type == KeyType::integer || key.type == KeyType::number;
  if (const auto whole = number_in<std::int64_t>(digits); wants_number && whole)
    value = *whole;
  else if (const auto real = number_in<double>(digits); key.type == KeyType::number && real)
    value = *real;
  else if (key.type == KeyType::flag && (text == "true" || text == "false"))
    value = text == "true";
  return checked_value(key, value, where);
}

std::string value_text(const KeyValue& value) {
  if (const auto* whole = std::get_if<std::int64_t>(&value)) return fmt::format("{}", *whole);
  if (const auto* flag = std::get_if<bool>(&value)) return *flag ? "true" : "false";
  if (const auto* text = std::get_if<std::string>(&value)) return *text;
  // fmt prints the shortest digits that read back as the same double; "30" alone would be a whole number.
  std::string text = fmt::format("{}", std::get<double>(value));
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}

}  // namespace thimble
