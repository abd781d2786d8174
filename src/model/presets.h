// Presets: the useful points of the model family, as TOML files of presets/ inside the binary. The first
// line of each says what it is; `preset = "golf"` in one builds on another.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace thimble {

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

}  // namespace thimble
