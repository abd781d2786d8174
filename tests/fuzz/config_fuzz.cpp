// Arbitrary text must give an Error or a valid config: one that describes a model and is unchanged
// by writing and reading it. The first lines are also tried as arguments of --set.
#include <optional>

#include "base/error.h"
#include "base/json.h"
#include "config/builder.h"
#include "config/toml.h"
#include "model/params.h"
#include "targets.h"

namespace thimble {

namespace {

constexpr int kMostSets = 16;

void try_config(const ConfigBuilder& settings) {
  std::optional<Config> config;
  try {
    config = settings.resolve();
  } catch (const Error&) {
    return;
  }
  // Most inputs set nothing; the checks below would then take most of the time.
  static const Config defaults = ConfigBuilder().resolve();
  if (*config == defaults) return;
  const std::string written = to_toml(*config);
  const Config again = config_from_toml(written, "again");
  require(again == *config, "a config is unchanged by a round trip");
  require(to_toml(again) == written, "equal configs give equal bytes");
  require(parse_json(to_json(again).dump(), "json").size() == all_keys().size(), "every key is printed");
  require(ParamTable(again.model).count() > 0, "a model has parameters");
}

void try_toml(std::string_view text) {
  ConfigBuilder settings;
  try {
    settings.toml(text, "fuzz");
  } catch (const Error&) {
    return;
  }
  try_config(settings);
}

}  // namespace

void fuzz_config(FuzzBytes bytes) {
  std::string_view text = text_of(bytes);
  try_toml(text);
  try {
    parse_sections(text, "fuzz");
  } catch (const Error&) {
  }
  ConfigBuilder settings;
  for (int i = 0; i < kMostSets && !text.empty(); ++i) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    try {
      settings.set(text.substr(0, end));
    } catch (const Error&) {
    }
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  try_config(settings);
}

}  // namespace thimble
