// Builds a Config from layers: defaults, a preset, --config files, then --set and flags. Later
// layers override earlier ones, and the origin of every key is recorded.
//
// Three pairs of keys exclude each other: batch_tokens and batch_size, steps and epochs, swa_start
// and ema_decay. Setting one resets the other if that came from an earlier layer. Setting both in
// one layer is an error.
//
// An `lr` set by the user is the rate of every group: it resets the group rates that the user did
// not set, such as a preset's matrix_lr.
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

  // At most one preset may be selected: here, or with the line `preset = "golf"` in a file.
  void preset(std::string_view name);
  void file(const std::filesystem::path& path);
  void toml(std::string_view text, std::string_view name);  // like file(), from its content
  void set(std::string_view assignment);                    // "dim=256", as after --set
  void set_flag(const Key& key, std::string_view text);     // "256", as after --dim

  // Whether the user set the key, in a file or on the command line.
  bool given(std::string_view key) const { return origin(key) >= Layer::file; }
  Layer origin(std::string_view key) const;
  // Sets a key unless the user did. Used for --depth and the vocabulary size of the tokenizer.
  void derive(std::string_view key, const KeyValue& value);

  const std::string& preset_name() const { return preset_; }    // empty: none
  const Config& current() const { return config_; }             // not resolved
  const Config& before_user() const { return preset_config_; }  // defaults and preset only
  // If the user changed the context but not the batch, the batch becomes a whole number of rows.
  // Throws Error if nothing ends the run.
  Config resolve() const;

 private:
  void read(std::string_view text, std::string_view name, Layer layer);
  void put(const Key& key, const KeyValue& value, Layer layer, std::string_view where);
  void take_back_rival(const Key& key, Layer layer, std::string_view where);
  void reset_group_rates();

  Config config_, preset_config_;
  std::string preset_;
  std::map<std::string_view, Layer> origin_;  // keys of all_keys()
};

// Presets are the TOML files in presets/, which are compiled into the binary. The first line of
// each is a summary. A preset can extend another with a line such as `preset = "golf"`.
struct Preset {
  std::string name;          // "golf"
  std::string file;          // "presets/golf.toml", for messages
  std::string_view summary;  // the first comment line
  std::string_view text;
};

std::span<const Preset> all_presets();  // sorted by name
std::vector<std::string_view> preset_names();

// Throws an Error with the nearest name if there is no such preset.
const Preset& find_preset(std::string_view name);

// Warnings for settings of --set and flags that have no effect because the feature they belong to
// is off: "q_gain_init has no effect: q_gain is none". Files are not checked, since they may list
// every key.
std::vector<std::string> idle_settings(const ConfigBuilder& settings);

}  // namespace thimble
