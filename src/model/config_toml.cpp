#include "model/config_toml.h"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "model/config_builder.h"

namespace thimble {

namespace {

constexpr std::size_t kShown = 80;  // bytes of a foreign text in a message

KeyValue value_of(const toml::node& node, std::string_view key, std::string_view name) {
  if (const auto* whole = node.as_integer()) return whole->get();
  if (const auto* real = node.as_floating_point()) return real->get();
  if (const auto* flag = node.as_boolean()) return flag->get();
  if (const auto* text = node.as_string()) return text->get();
  fail(Hint{"settings are plain lines: key = value"}, "{}:{}: {} holds {}, expected one value", name,
       node.source().begin.line, key.substr(0, kShown), node.is_table() ? "a table" : "a list or a date");
}

std::string toml_line(const Key& key, const Config& config) {
  const std::string text = value_text(key.get(config));
  return key.type == KeyType::choice ? fmt::format("{} = \"{}\"\n", key.name, text)
                                     : fmt::format("{} = {}\n", key.name, text);
}

std::string toml_lines(const Config& config, bool training) {
  std::string text = training ? "# training\n" : "# model\n";
  for (const Key& key : all_keys())
    if (key.training == training) text += toml_line(key, config);
  return text;
}

}  // namespace

std::vector<Setting> parse_settings(std::string_view toml, std::string_view name) {
  toml::table table;
  try {
    table = toml::parse(toml, name);
  } catch (const toml::parse_error& error) {  // a foreign exception, translated where it enters
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
  return toml_lines(config, false) + "\n" + toml_lines(config, true);
}

std::string to_toml(const ModelConfig& config) {
  return toml_lines({config, {}}, false);
}

Config config_from_toml(std::string_view toml, std::string_view name) {
  // What we write is ASCII, and toml++ 3 has undefined behaviour for some of the rest.
  check(std::ranges::all_of(toml, [](char c) { return static_cast<unsigned char>(c) < 0x80; }),
        "{}: expected plain ASCII", name);
  ConfigBuilder settings;
  settings.toml(toml, name);
  return settings.resolve();
}

Json to_json(const Config& config) {
  Json object = Json::object();
  for (const Key& key : all_keys())
    std::visit([&](const auto& value) { object.set(std::string(key.name), value); }, key.get(config));
  return object;
}

}  // namespace thimble
