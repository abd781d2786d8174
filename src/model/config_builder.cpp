#include "model/config_builder.h"

#include <fmt/format.h>

#include <array>
#include <utility>

#include "base/error.h"
#include "base/files.h"
#include "model/config_toml.h"
#include "model/presets.h"

namespace thimble {

namespace {

constexpr std::uint64_t kMaxConfigBytes = 1 << 20;

const Key& known_key(std::string_view name, std::string_view where) {
  const Key* key = find_key(name);
  if (!key) fail(Hint{nearest_key_hint(name)}, "{}unknown key '{}'", where, name.substr(0, 80));
  return *key;
}

// The other way to say what `name` says; empty: there is none.
std::string_view rival_of(std::string_view name) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 2> kRivals = {
      {{"batch_tokens", "batch_size"}, {"swa_start", "ema_decay"}}};
  for (const auto& [a, b] : kRivals) {
    if (name == a) return b;
    if (name == b) return a;
  }
  return {};
}

bool is_zero(const KeyValue& value) {
  return value == KeyValue(std::int64_t{0}) || value == KeyValue(0.0);
}

KeyValue zero_of(const Key& key) {
  return key.type == KeyType::integer ? KeyValue(std::int64_t{0}) : KeyValue(0.0);
}

}  // namespace

void ConfigBuilder::preset(std::string_view name) {
  check(preset_.empty() || preset_ == name, "the preset is '{}' already, found '{}' as another", preset_,
        name);
  if (preset_ == name) return;
  const Preset& found = find_preset(name);
  preset_ = name;
  read(found.text, found.file, Layer::preset);
  preset_config_ = config_;
}

void ConfigBuilder::file(const std::filesystem::path& path) {
  toml(read_file(path, kMaxConfigBytes), path.string());
}

void ConfigBuilder::toml(std::string_view text, std::string_view name) {
  read(text, name, Layer::file);
}

void ConfigBuilder::set(std::string_view assignment) {
  const std::size_t equals = assignment.find('=');
  check(equals != std::string_view::npos && equals > 0, "--set takes key=value, found '{}'", assignment);
  const Key& key = known_key(assignment.substr(0, equals), "--set: ");
  put(key, value_from_text(key, assignment.substr(equals + 1), "--set: "), Layer::command, "--set: ");
}

void ConfigBuilder::set_flag(const Key& key, std::string_view text) {
  const std::string where = fmt::format("--{}: ", key.dashed);
  put(key, value_from_text(key, text, where), Layer::command, where);
}

ConfigBuilder::Layer ConfigBuilder::origin(std::string_view key) const {
  const auto found = origin_.find(key);
  return found == origin_.end() ? Layer::initial : found->second;
}

void ConfigBuilder::derive(std::string_view key, const KeyValue& value) {
  const Key& row = known_key(key, "");
  if (!given(key)) put(row, checked_value(row, value, ""), Layer::derived, "");
}

void ConfigBuilder::read(std::string_view text, std::string_view name, Layer layer) {
  const std::vector<Setting> settings = parse_settings(text, name);
  for (const Setting& setting : settings) {
    if (setting.key != "preset") continue;
    const auto* base = std::get_if<std::string>(&setting.value);
    if (!base) fail("{}:{}: preset takes a name in quotes", name, setting.line);
    // A preset may build on another; its own name is the one that counts.
    if (layer == Layer::preset)
      read(find_preset(*base).text, find_preset(*base).file, layer);
    else
      preset(*base);
  }
  for (const Setting& setting : settings) {
    if (setting.key == "preset") continue;
    const std::string where = fmt::format("{}:{}: ", name, setting.line);
    const Key& key = known_key(setting.key, where);
    put(key, checked_value(key, setting.value, where), layer, where);
  }
}

void ConfigBuilder::put(const Key& key, const KeyValue& value, Layer layer, std::string_view where) {
  if (!is_zero(value)) take_back_rival(key, layer, where);
  key.put(config_, value);
  origin_[key.name] = layer;
}

void ConfigBuilder::take_back_rival(const Key& key, Layer layer, std::string_view where) {
  const std::string_view name = rival_of(key.name);
  if (name.empty()) return;
  const Key& rival = known_key(name, "");
  if (is_zero(rival.get(config_))) return;
  const auto origin = origin_.find(rival.name);
  check(origin == origin_.end() || origin->second != layer || layer == Layer::preset,
        "{}{} and {} are both set: name one", where, key.name, rival.name);
  rival.put(config_, zero_of(rival));
}

}  // namespace thimble
