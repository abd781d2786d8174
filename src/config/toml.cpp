#include "config/toml.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "config/builder.h"

namespace thimble {

namespace {

std::string toml_line(const Key& key, const Config& config) {
  const std::string text = value_text(key.get(config));
  return is_quoted(key) ? fmt::format("{} = \"{}\"\n", key.name, text)
                        : fmt::format("{} = {}\n", key.name, text);
}

std::string toml_lines(const Config& config, bool of_model) {
  std::string text = of_model ? "# model\n" : "# training\n";
  for (const Key& key : all_keys())
    if (key.of_model() == of_model) text += toml_line(key, config);
  return text;
}

}  // namespace

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
