// Settings in layers: defaults, then a preset, then --config files, then --set and flags. Later wins, and
// every key remembers which layer it came from.
//
// Two pairs of keys say one thing in two ways: batch_tokens or batch_size, swa_start or ema_decay. Setting
// one takes back the other if that came from an earlier layer; both in one layer is an error.
#pragma once

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/keys.h"

namespace thimble {

class ConfigBuilder {
 public:
  enum class Layer { initial, preset, derived, file, command };

  // A preset is named at most once: here, or by the line `preset = "golf"` in a file.
  void preset(std::string_view name);
  void file(const std::filesystem::path& path);
  void toml(std::string_view text, std::string_view name);  // what file() does with its content
  void set(std::string_view assignment);                    // "dim=256", as after --set
  void set_flag(const Key& key, std::string_view text);     // "256", as after --dim

  // Any layer above the presets: said by the user, so not for others to change.
  bool given(std::string_view key) const { return origin(key) >= Layer::file; }
  Layer origin(std::string_view key) const;
  // A key that the user did not give; --depth and the tokenizer's size come in here.
  void derive(std::string_view key, const KeyValue& value);

  const std::string& preset_name() const { return preset_; }    // empty: none
  const Config& current() const { return config_; }             // not resolved
  const Config& before_user() const { return preset_config_; }  // defaults and preset alone
  Config resolve() const { return resolved(config_); }

 private:
  void read(std::string_view text, std::string_view name, Layer layer);
  void put(const Key& key, const KeyValue& value, Layer layer, std::string_view where);
  void take_back_rival(const Key& key, Layer layer, std::string_view where);

  Config config_, preset_config_;
  std::string preset_;
  std::map<std::string_view, Layer> origin_;  // keys of all_keys()
};

// Presets: the useful points of the model family, as TOML files of presets/ inside the binary. The first
// line of each says what it is; `preset = "golf"` in one builds on another.
struct Preset {
  std::string name;          // "golf"
  std::string file;          // "presets/golf.toml": for messages
  std::string_view summary;  // the first comment line
  std::string_view text;
};

std::span<const Preset> all_presets();  // by name
std::vector<std::string_view> preset_names();

// Throws an Error with the nearest name if there is no such preset.
const Preset& find_preset(std::string_view name);

// Settings that change nothing, because what they are for is off: a mistyped run of a week looks just like a right one.
// Of what --set and flags said, a line each: "q_gain_init changes nothing: q_gain is none". A file may hold every key.
std::vector<std::string> idle_settings(const ConfigBuilder& settings);

}  // namespace thimble
