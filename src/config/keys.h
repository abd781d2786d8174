// The table of config keys. TOML reading and printing, --set, flags, their help and the "did you
// mean" hints are derived from it. The default of a key is its value in a default-constructed
// Config.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "config/config.h"

namespace thimble {

// The value of a key; a choice is stored by name, a set as its names with commas between them, a
// list of numbers as text.
using KeyValue = std::variant<std::int64_t, double, bool, std::string>;

enum class KeyType { integer, number, flag, choice, set, list };

// The struct of Config that stores a key.
enum class ConfigPart { model, optimizer, training, pack, lora, state };

struct Key {
  std::string_view name;  // "rope_base"
  std::string dashed;     // "rope-base", as a flag is spelled
  KeyType type;
  ConfigPart part;
  std::string_view group = {};  // heading in help and documentation: "model", "schedule", ...
  std::string_view help;
  double least = 0, most = 0;                  // integer and number; integers below 2^53 are exact
  std::vector<std::string_view> choices = {};  // of a choice or set, in the order of the enum
  KeyValue (*get)(const Config&) = nullptr;
  void (*put)(Config&, const KeyValue&) = nullptr;  // the value must have the type of the key

  bool of_model() const { return part == ConfigPart::model; }
};

std::span<const Key> all_keys();

// The keys of the learning rates of single groups, which default to `lr`.
inline constexpr std::string_view kGroupRates[] = {"embed_lr", "head_lr", "matrix_lr", "scalar_lr"};

const Key* find_key(std::string_view name);

// "did you mean rope_base?", or empty if no key has a similar name. Dashes and underscores are
// interchangeable.
std::string nearest_key_hint(std::string_view name);

// What thimble calls a thing that nanoGPT, Hugging Face, llama.cpp or Ollama name `word`: the name
// among `names` (commands, options, arguments or keys) with this meaning, or empty. Dashes and
// underscores are interchangeable.
std::string_view synonym(std::string_view word, std::span<const std::string_view> names);

// Returns the value converted to the type of the key. Throws an Error that lists what the key
// accepts; `where` is the prefix of its message, such as "run/config.toml:3: " or "--set: ".
KeyValue checked_value(const Key& key, const KeyValue& value, std::string_view where);

// Checks the values of all keys of a part.
void check_values(const Config& config, ConfigPart part);

// Like checked_value(), from text as typed after `--set key=`: numbers may have a unit, as in 500k.
KeyValue value_from_text(const Key& key, std::string_view text, std::string_view where);

// "30.0", "true" or "relu2": the form that value_from_text() reads. TOML puts quotes around
// choices, sets and lists.
std::string value_text(const KeyValue& value);
inline bool is_quoted(const Key& key) {
  return key.type == KeyType::choice || key.type == KeyType::set || key.type == KeyType::list;
}

// The numbers of a list such as "1.0,1.1"; nullopt if one of them is not a number.
std::optional<std::vector<double>> numbers_in(std::string_view list);

}  // namespace thimble
