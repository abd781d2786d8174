// Configs as TOML text: presets, --config files, RUN/config.toml and the `config` string in the
// metadata of a checkpoint. Settings are `key = value` lines without tables.
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

// Returns the settings in the order of their lines; keys are not checked. `name` is the prefix of
// error messages: "config.toml:3: ...".
std::vector<Setting> parse_settings(std::string_view toml, std::string_view name);

// Contains every key. Equal configs give equal text, and reading it gives the same config.
std::string to_toml(const Config& config);
std::string to_toml(const ModelConfig& config);  // only keys of the model

// Reads the text of to_toml(), resolves and validates it. The text may come from a hostile file.
Config config_from_toml(std::string_view toml, std::string_view name);

// An object with every key, for printing.
Json to_json(const Config& config);

}  // namespace thimble
