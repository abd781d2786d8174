// Configs as TOML text: how presets, --config files, RUN/config.toml and the `config` string in a
// checkpoint's metadata are written. Settings are plain `key = value` lines; there are no tables.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "config/keys.h"

namespace thimble {

class Json;

struct Setting {
  std::string key;
  KeyValue value;
  std::uint32_t line;
};

// In the order of the lines; keys are not looked up yet. `name` starts every error: "config.toml:3: ...".
std::vector<Setting> parse_settings(std::string_view toml, std::string_view name);

// Every key. Equal configs give equal bytes, and reading them gives the same config.
std::string to_toml(const Config& config);
std::string to_toml(const ModelConfig& config);  // the model's keys alone

// What to_toml wrote, resolved and validated: the text may come from anywhere.
Config config_from_toml(std::string_view toml, std::string_view name);

// For printing only: an object with every key.
Json to_json(const Config& config);

}  // namespace thimble
