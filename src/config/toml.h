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

// A file of sections, such as that of a sweep. TOML's [[lists of tables]], nested lists and dotted
// keys are refused.
//
//   [grid]                  section "grid"
//   lr = [0.001, 0.002]     entry "lr" with two values; a list may continue on the next lines
struct TomlEntry {
  std::string key;
  std::vector<KeyValue> values;  // one, unless is_list
  bool is_list = false;
  std::uint32_t line = 0;
};
struct TomlSection {
  std::string name;
  std::uint32_t line = 0;
  std::vector<TomlEntry> entries = {};
};

// Throws for a section or, within a section, a key that occurs twice. Names are not checked. `name`
// is the prefix of error messages.
std::vector<TomlSection> parse_sections(std::string_view toml, std::string_view name);

// Contains every key. Equal configs give equal text, and reading it gives the same config.
std::string to_toml(const Config& config);
std::string to_toml(const ModelConfig& config);  // only keys of the model

// Reads the text of to_toml(), resolves and validates it. The text may come from a hostile file.
Config config_from_toml(std::string_view toml, std::string_view name);

// An object with every key, for printing.
Json to_json(const Config& config);

}  // namespace thimble
