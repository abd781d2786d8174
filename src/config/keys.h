// The table of keys: one row each, from which come TOML reading and printing, --set, flags, their help and
// "did you mean". A key's default is what a fresh Config holds.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "config/config.h"

namespace thimble {

// What a key holds. Choices are spelled out.
using KeyValue = std::variant<std::int64_t, double, bool, std::string>;

enum class KeyType { integer, number, flag, choice };

// Which struct of Config holds a key: its section of the table.
enum class ConfigPart { model, optimizer, training, pack, state };

struct Key {
  std::string_view name;  // "rope_base"
  std::string dashed;     // "rope-base", as a flag is spelled
  KeyType type;
  ConfigPart part;
  std::string_view help;
  double least = 0, most = 0;                  // integer and number; integers below 2^53 are exact
  std::vector<std::string_view> choices = {};  // in the order of the enum
  KeyValue (*get)(const Config&) = nullptr;
  void (*put)(Config&, const KeyValue&) = nullptr;  // of the right alternative, unchecked

  bool of_model() const { return part == ConfigPart::model; }  // else of how it is trained or packed
};

std::span<const Key> all_keys();
const Key* find_key(std::string_view name);

// "did you mean rope_base?"; empty if nothing is near. Dashes count as underscores.
std::string nearest_key_hint(std::string_view name);

// The value in the key's own type, or an Error that says what the key takes. `where` starts the message:
// "run/config.toml:3: ", "--set: " or nothing.
KeyValue checked_value(const Key& key, const KeyValue& value, std::string_view where);

// The same for all keys of a part.
void check_values(const Config& config, ConfigPart part);

// The same from text, as typed after --set key=.
KeyValue value_from_text(const Key& key, std::string_view text, std::string_view where);

// "30.0", "true", "relu2": as value_from_text reads it. TOML puts quotes around choices.
std::string value_text(const KeyValue& value);

}  // namespace thimble
