#include "config/builder.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "base/text.h"
#include "config/toml.h"

namespace thimble {

namespace {

constexpr std::uint64_t kMaxConfigBytes = 1 << 20;

const Key& known_key(std::string_view name, std::string_view where) {
  const Key* key = find_key(name);
  if (!key) fail(Hint{nearest_key_hint(name)}, "{}unknown key '{}'", where, name.substr(0, 80));
  return *key;
}

// The key that excludes `name`, or empty.
std::string_view rival_of(std::string_view name) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kRivals = {
      {{"batch_tokens", "batch_size"}, {"steps", "epochs"}, {"swa_start", "ema_decay"}}};
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
  check(preset_.empty() || preset_ == name, "expected one preset, found '{}' and '{}'", preset_, name);
  if (preset_ == name) return;
  const Preset& found = find_preset(name);
  preset_ = name;
  read(found.text, found.file, Layer::preset);
  preset_config_ = config_;
}

void ConfigBuilder::file(const std::filesystem::path& path) {
  toml(read_file_or_pipe(path, kMaxConfigBytes), path.string());
}

void ConfigBuilder::toml(std::string_view text, std::string_view name) {
  read(text, name, Layer::file);
}

void ConfigBuilder::set(std::string_view assignment) {
  const std::size_t equals = assignment.find('=');
  check(equals != std::string_view::npos && equals > 0, "--set expects key=value, found '{}'", assignment);
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
    if (!base) fail("{}:{}: preset expects a name in quotes", name, setting.line);
    // A preset may extend another; preset_name() remains the name of the outer one.
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
  if (key.name == "lr" && layer >= Layer::file) reset_group_rates();
}

void ConfigBuilder::reset_group_rates() {
  for (const std::string_view name : kGroupRates) {
    if (given(name)) continue;
    known_key(name, "").put(config_, KeyValue(0.0));
    origin_[known_key(name, "").name] = Layer::derived;
  }
}

void ConfigBuilder::take_back_rival(const Key& key, Layer layer, std::string_view where) {
  const std::string_view name = rival_of(key.name);
  if (name.empty()) return;
  const Key& rival = known_key(name, "");
  if (is_zero(rival.get(config_))) return;
  const auto origin = origin_.find(rival.name);
  check(origin == origin_.end() || origin->second != layer || layer == Layer::preset,
        "{}{} and {} cannot both be set", where, key.name, rival.name);
  rival.put(config_, zero_of(rival));
}

Config ConfigBuilder::resolve() const {
  check_has_end(config_.train);
  Config config = config_;
  TrainConfig& train = config.train;
  const std::int64_t context = config.model.context;
  if (!given("batch_tokens") && train.batch_tokens % context != 0) {
    train.batch_tokens = std::max<std::int64_t>(1, train.batch_tokens / context) * context;
    if (!given("span_tokens")) train.span_tokens = 0;
  }
  return resolved(config);
}

// Generated by cmake/Embed.cmake: file name and content of presets/*.toml.
std::span<const std::pair<std::string_view, std::string_view>> embedded_presets();

namespace {

std::vector<Preset> read_presets() {
  std::vector<Preset> presets;
  for (const auto& [file, text] : embedded_presets()) {
    const std::string_view first = text.substr(0, text.find('\n'));
    presets.push_back({.name = std::string(file.substr(0, file.rfind('.'))),
                       .file = fmt::format("presets/{}", file),
                       .summary = first.substr(std::min<std::size_t>(2, first.size())),
                       .text = text});
  }
  std::sort(presets.begin(), presets.end(), [](const Preset& a, const Preset& b) { return a.name < b.name; });
  return presets;
}

}  // namespace

std::span<const Preset> all_presets() {
  static const std::vector<Preset> presets = read_presets();  // immutable
  return presets;
}

std::vector<std::string_view> preset_names() {
  std::vector<std::string_view> names;
  for (const Preset& preset : all_presets()) names.push_back(preset.name);
  return names;
}

const Preset& find_preset(std::string_view name) {
  for (const Preset& preset : all_presets())
    if (preset.name == name) return preset;
  const std::vector<std::string_view> names = preset_names();
  const std::string_view best = nearest(name, names);
  fail(Hint{best.empty() ? fmt::format("choose one of {}", joined(names, ", "))
                         : fmt::format("did you mean {}?", best)},
       "unknown preset '{}'", name.substr(0, 80));
}

namespace {

struct Need {
  std::string_view key;
  bool (*met)(const Config&);
  std::string_view otherwise;
};

bool turns(const Config& c) {
  return c.model.position == PositionKind::rope;
}
bool scales_rope(const Config& c) {
  return turns(c) && c.model.rope_scaling != RopeScaling::none;
}
bool scales_as_llama3(const Config& c) {
  return turns(c) && c.model.rope_scaling == RopeScaling::llama3;
}
bool scales_as_yarn(const Config& c) {
  return turns(c) && c.model.rope_scaling == RopeScaling::yarn;
}
bool scales_by_lists(const Config& c) {
  return turns(c) && c.model.rope_scaling == RopeScaling::longrope;
}
bool has_attention_factor(const Config& c) {
  return scales_as_yarn(c) || scales_by_lists(c);
}
bool has_original_context(const Config& c) {
  return scales_as_llama3(c) || has_attention_factor(c);
}
bool loops(const Config& c) {
  return c.model.loop_count > 0;
}
bool has_muon(const Config& c) {
  return c.optimizer.uses_muon();
}
bool falls_at_the_end(const Config& c) {
  return c.train.schedule == ScheduleKind::golf || c.train.schedule == ScheduleKind::wsd;
}

constexpr Need kNeeds[] = {
    {"rope_base", turns, "position is not rope"},
    {"rope_dims", turns, "position is not rope"},
    {"rope_direction", turns, "position is not rope"},
    {"rope_scaling", turns, "position is not rope"},
    {"nope_every", turns, "position is not rope"},
    {"rope_factor", scales_rope, "rope_scaling is none"},
    {"rope_low_factor", scales_as_llama3, "rope_scaling is not llama3"},
    {"rope_high_factor", scales_as_llama3, "rope_scaling is not llama3"},
    {"rope_original_context", has_original_context, "rope_scaling is not llama3, longrope or yarn"},
    {"rope_beta_fast", scales_as_yarn, "rope_scaling is not yarn"},
    {"rope_beta_slow", scales_as_yarn, "rope_scaling is not yarn"},
    {"rope_attention_factor", has_attention_factor, "rope_scaling is not longrope or yarn"},
    {"rope_short_factors", scales_by_lists, "rope_scaling is not longrope"},
    {"rope_long_factors", scales_by_lists, "rope_scaling is not longrope"},
    {"q_gain_init", [](const Config& c) { return c.model.q_gain != GainKind::none; }, "q_gain is none"},
    {"loop_first", loops, "loop_count is 0"},
    {"loop_last", loops, "loop_count is 0"},
    {"loop_start", loops, "loop_count is 0"},
    {"muon_weight_decay", has_muon, "muon_steps is 0"},
    {"muon_momentum", has_muon, "muon_steps is 0"},
    {"muon_momentum_start", has_muon, "muon_steps is 0"},
    {"muon_momentum_steps", has_muon, "muon_steps is 0"},
    {"muon_dtype", has_muon, "muon_steps is 0"},
    {"muon_coefficients", has_muon, "muon_steps is 0"},
    {"muon_row_norm", has_muon, "muon_steps is 0"},
    {"warmdown", falls_at_the_end, "schedule is neither golf nor wsd"},
    {"swa_every", [](const Config& c) { return c.train.swa_start > 0; }, "swa_start is 0"},
    {"min_delta", [](const Config& c) { return c.train.patience > 0; }, "patience is 0"},
    {"min_steps", [](const Config& c) { return c.train.patience > 0; }, "patience is 0"},
    {"qat_start", [](const Config& c) { return c.train.qat_bits > 0; }, "qat_bits is 0"},
};

}  // namespace

std::vector<std::string> idle_settings(const ConfigBuilder& settings) {
  std::vector<std::string> lines;
  for (const Need& need : kNeeds)
    if (settings.origin(need.key) == ConfigBuilder::Layer::command && !need.met(settings.current()))
      lines.push_back(fmt::format("{} has no effect: {}", need.key, need.otherwise));
  return lines;
}

}  // namespace thimble
