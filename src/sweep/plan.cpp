#include "sweep/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>

#include "base/error.h"
#include "base/text.h"
#include "config/toml.h"

namespace thimble {

namespace {

constexpr std::size_t kMaxVariants = 1000, kShown = 80;
constexpr std::string_view kVariant = "variant.";

constexpr std::array<SweepOption, 12> kOptions = {{
    {"preset", "preset"},
    {"depth", "depth"},
    {"optimizer", "optimizer"},
    {"init_model", "init", false, true},  // the tokenizer may be the model's
    {"data", "data", false, true},
    {"val_data", "val-data", false, true},
    {"tokenizer", "tokenizer", false, true},
    {"val_fraction", "val-fraction", false, true},
    {"documents", "documents", false, true},
    {"chat", "chat", true, true},
    {"skip_long", "skip-long", true, true},
    {"order", "order"},
}};

const SweepOption* find_option(std::string_view key) {
  const auto* const found = std::ranges::find(kOptions, key, &SweepOption::key);
  return found == kOptions.end() ? nullptr : found;
}

// "did you mean dropout?", among the settings and the names of `more`.
Hint nearest_setting(std::string_view key, std::span<const std::string_view> more = {}) {
  std::vector<std::string_view> names(more.begin(), more.end());
  for (const SweepOption& option : kOptions) names.push_back(option.key);
  for (const Key& known : all_keys()) names.push_back(known.name);
  const std::string_view best = nearest(key, names);
  if (!best.empty()) return {fmt::format("did you mean {}?", best)};
  return {nearest_key_hint(key)};
}

// A setting of one variant, with its place in the file.
struct Placed {
  SweepSetting setting;
  std::string where;  // "sweep.toml:12: "
};
using Settings = std::vector<Placed>;

// Checks the key and the value.
Placed checked(const std::string& key, const KeyValue& value, std::string where) {
  if (key == "seed")
    fail(Hint{"write seeds = [1, 2, 3] in the section [sweep]"}, "{}seed is not a setting of a variant",
         where);
  if (const SweepOption* option = find_option(key)) {
    if (option->is_flag) check(std::holds_alternative<bool>(value), "{}{} expects true or false", where, key);
    return {{key, value_text(value)}, std::move(where)};
  }
  const Key* known = find_key(key);
  if (!known) fail(nearest_setting(key), "{}unknown key '{}'", where, key.substr(0, kShown));
  check(known->part != ConfigPart::state, "{}{} is not a setting: training sets it", where, key);
  checked_value(*known, value, where);
  return {{std::string(known->name), value_text(value)}, std::move(where)};
}

// A setting given on the command line as key=value.
Placed from_command_line(const std::string& assignment) {
  const std::size_t equals = assignment.find('=');
  check(equals != assignment.npos && equals > 0, "--set expects key=value, found '{}'", assignment);
  const std::string key = assignment.substr(0, equals), text = assignment.substr(equals + 1);
  if (const SweepOption* option = find_option(key))
    return checked(
        key,
        option->is_flag && (text == "true" || text == "false") ? KeyValue(text == "true") : KeyValue(text),
        "--set: ");
  const Key* known = find_key(key);
  if (!known) fail(nearest_setting(key), "--set: unknown key '{}'", key.substr(0, kShown));
  return checked(key, value_from_text(*known, text, "--set: "), "--set: ");
}

// A copy of `first` in which the settings of `second` replace those of the same key.
Settings layered(const Settings& first, const Settings& second) {
  Settings all = first;
  for (const Placed& placed : second) {
    std::erase_if(all, [&](const Placed& old) { return old.setting.key == placed.setting.key; });
    all.push_back(placed);
  }
  return all;
}

void check_name(std::string_view name, std::string_view where) {
  const auto fits = [](char c) {
    return is_ascii_alnum(c) || std::string_view("-_.=,+").find(c) != std::string_view::npos;
  };
  check(!name.empty() && name.size() <= 200 && name[0] != '.' && std::ranges::all_of(name, fits),
        Hint{"use at most 200 letters, digits and -_.=,+ in a section [variant.NAME]"},
        "{}'{}' cannot be the name of a variant, which is the name of its files", where,
        name.substr(0, kShown));
}

// "lr=0.02,dropout=0.1", with characters that names of files cannot contain replaced.
std::string name_of(const Settings& changes) {
  std::string name;
  for (const Placed& placed : changes)
    name += fmt::format("{}{}={}", name.empty() ? "" : ",", placed.setting.key, placed.setting.value);
  for (char& c : name)
    if (!is_ascii_alnum(c) && std::string_view("-_.=,+").find(c) == std::string_view::npos) c = '-';
  return name;
}

// For what the command line changes: the exit code of the command is then that of a usage error.
void as_usage(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    throw UsageError(error.what(), Hint{error.hint()}, error.where());
  }
}

class SweepReader {
 public:
  SweepReader(std::string_view toml, std::string_view name, const SweepChanges& changes)
      : sections_(parse_sections(toml, name)), name_(name), changes_(changes) {}

  SweepPlan read() {
    read_sweep();
    read_base();
    for (const TomlSection& section : sections_) {
      if (section.name == "one") add_one_at_a_time(section);
      if (section.name == "grid") add_grid(section);
      if (section.name.starts_with(kVariant)) add_listed(section);
    }
    keep_chosen();
    return std::move(plan_);
  }

 private:
  std::string where(std::uint32_t line) const { return fmt::format("{}:{}: ", name_, line); }

  static const KeyValue& single(const TomlEntry& entry, const std::string& where) {
    check(!entry.is_list, Hint{"move it to the section [one] or [grid] to try several values"},
          "{}{} expects one value, found a list", where, entry.key);
    return entry.values.front();
  }

  static std::string text_of(const TomlEntry& entry, const std::string& where) {
    const auto* text = std::get_if<std::string>(&single(entry, where));
    check(text != nullptr, "{}{} expects text in quotes", where, entry.key);
    return *text;
  }

  // [sweep], and the names of the other sections.
  void read_sweep() {
    constexpr std::array<std::string_view, 5> kSections = {"sweep", "base", "one", "grid", "variant.NAME"};
    for (const TomlSection& section : sections_) {
      const bool known = std::ranges::count(kSections, section.name) > 0 && section.name != "variant.NAME";
      if (!known && !section.name.starts_with(kVariant)) {
        const std::string_view best = nearest(section.name, kSections);
        fail(Hint{best.empty() ? fmt::format("the sections are {}", joined(kSections, ", "))
                               : fmt::format("did you mean [{}]?", best)},
             "{}unknown section [{}]", where(section.line), section.name.substr(0, kShown));
      }
      if (section.name == "sweep")
        for (const TomlEntry& entry : section.entries) read_sweep_key(entry);
    }
    if (plan_.seeds.empty()) plan_.seeds = {1337};
  }

  void read_sweep_key(const TomlEntry& entry) {
    constexpr std::array<std::string_view, 3> kKeys = {"seeds", "score", "pack"};
    const std::string at = where(entry.line);
    if (entry.key == "seeds") {
      for (const KeyValue& value : entry.values) {
        const auto* seed = std::get_if<std::int64_t>(&value);
        check(seed && *seed >= 0 && static_cast<double>(*seed) <= find_key("seed")->most,
              "{}seeds expects whole numbers from 0 to {:.0f}, found {}", at, find_key("seed")->most,
              value_text(value));
        check(std::ranges::count(plan_.seeds, *seed) == 0, "{}seed {} occurs twice", at, *seed);
        plan_.seeds.push_back(*seed);
      }
      check(!plan_.seeds.empty(), "{}seeds expects at least one seed", at);
    } else if (entry.key == "score") {
      const std::string text = text_of(entry, at);
      check(text == "best" || text == "last", "{}score expects \"best\" or \"last\", found \"{}\"", at,
            text.substr(0, kShown));
      plan_.score = text == "best" ? SweepScore::best : SweepScore::last;
    } else if (entry.key == "pack") {
      const auto* pack = std::get_if<bool>(&single(entry, at));
      check(pack != nullptr, "{}pack expects true or false", at);
      plan_.pack = *pack;
    } else {
      const bool setting = find_key(entry.key) || find_option(entry.key);
      const std::string_view best = nearest(entry.key, kKeys);
      fail(setting         ? Hint{"move it to the section [base]"}
           : !best.empty() ? Hint{fmt::format("did you mean {}?", best)}
                           : nearest_setting(entry.key),
           "{}unknown key '{}' in [sweep]", at, entry.key.substr(0, kShown));
    }
  }

  // The settings of a section of single values; `name` and `note` are taken out of it.
  Settings settings_of(const TomlSection& section, std::string* name, std::string& note) {
    Settings settings;
    for (const TomlEntry& entry : section.entries) {
      const std::string at = where(entry.line);
      if (name && entry.key == "name")
        *name = text_of(entry, at);
      else if (entry.key == "note")
        note = text_of(entry, at);
      else
        settings.push_back(checked(entry.key, single(entry, at), at));
    }
    return settings;
  }

  void read_base() {
    std::string name = "base", note;
    for (const TomlSection& section : sections_) {
      if (section.name != "base") continue;
      base_ = settings_of(section, &name, note);
    }
    Settings given;
    as_usage([&] {
      for (const std::string& assignment : changes_.base) given.push_back(from_command_line(assignment));
    });
    base_ = layered(base_, given);
    add(name, note, {}, fmt::format("{}: ", name_));
  }

  void add_one_at_a_time(const TomlSection& section) {
    for (const TomlEntry& entry : section.entries) {
      const std::string at = where(entry.line);
      check(!entry.values.empty(), "{}{} has no values", at, entry.key);
      for (const KeyValue& value : entry.values) {
        const Settings change = {checked(entry.key, value, at)};
        add_derived(change, at);
      }
    }
  }

  void add_grid(const TomlSection& section) {
    std::size_t combinations = section.entries.empty() ? 0 : 1;
    for (const TomlEntry& entry : section.entries) {
      check(!entry.values.empty(), "{}{} has no values", where(entry.line), entry.key);
      combinations *= entry.values.size();
      check(combinations <= kMaxVariants, "{}the grid has more than {} combinations", where(section.line),
            kMaxVariants);
    }
    for (std::size_t i = 0; i < combinations; ++i) {
      Settings change;
      std::size_t rest = i, count = combinations;
      for (const TomlEntry& entry : section.entries) {  // the last key changes fastest
        count /= entry.values.size();
        change.push_back(checked(entry.key, entry.values[rest / count], where(entry.line)));
        rest %= count;
      }
      add_derived(change, where(section.line));
    }
  }

  // A variant of [one] or [grid]; the base and each other's variants may be among them.
  void add_derived(const Settings& change, const std::string& at) {
    if (std::ranges::count(identity_, identity_of(change, at)) > 0) return;
    add(name_of(change), "", change, at);
  }

  void add_listed(const TomlSection& section) {
    std::string note;
    const Settings change = settings_of(section, nullptr, note);
    add(section.name.substr(kVariant.size()), note, change, where(section.line));
  }

  // The settings of a variant, with the contradictions between them resolved or refused.
  SweepVariant resolved_variant(const Settings& change, const std::string& at) const {
    SweepVariant variant;
    ConfigBuilder builder;
    const auto under = [&](const std::string& place, const auto& action) {
      try {
        action();
      } catch (const Error& error) {
        std::string_view message = error.what();
        for (const std::string_view prefix : {"--set: ", "--set:1: "})  // the place is known better here
          if (message.starts_with(prefix)) message.remove_prefix(prefix.size());
        fail(Hint{error.hint()}, "{}{}", place, message);
      }
    };
    for (const Placed& placed : layered(base_, change)) {
      const SweepOption* option = find_option(placed.setting.key);
      if (!option) continue;
      if (option->key == "preset") under(placed.where, [&] { builder.preset(placed.setting.value); });
      if (!option->is_flag || placed.setting.value == "true") variant.options.push_back(placed.setting);
    }
    if (builder.preset_name().empty()) builder.preset("quick");  // as `thimble train`
    // The base is a layer below the variant: a variant's `epochs` replaces the `steps` of the base.
    for (const Placed& placed : base_)
      if (!find_option(placed.setting.key))
        under(placed.where, [&] { builder.toml(toml_line(placed.setting), "--set"); });
    for (const Placed& placed : change)
      if (!find_option(placed.setting.key))
        under(placed.where, [&] { builder.set(placed.setting.key + "=" + placed.setting.value); });
    for (const Key& key : all_keys())
      if (builder.given(key.name))
        variant.settings.push_back({std::string(key.name), value_text(key.get(builder.current()))});
    under(at, [&] { builder.resolve(); });
    return variant;
  }

  static std::string toml_line(const SweepSetting& setting) {
    const Key& key = *find_key(setting.key);
    return is_quoted(key) ? fmt::format("{} = \"{}\"", setting.key, setting.value)
                          : fmt::format("{} = {}", setting.key, setting.value);
  }

  // Equal for variants that train the same.
  std::string identity_of(const Settings& change, const std::string& at) const {
    const SweepVariant variant = resolved_variant(change, at);
    std::vector<std::string> lines;
    for (const auto* list : {&variant.options, &variant.settings})
      for (const SweepSetting& setting : *list) lines.push_back(setting.key + "=" + setting.value);
    std::ranges::sort(lines);
    return joined(lines, "\n");
  }

  void add(const std::string& name, const std::string& note, const Settings& change, const std::string& at) {
    check_name(name, at);
    const std::string identity = identity_of(change, at);
    for (std::size_t i = 0; i < plan_.variants.size(); ++i) {
      check(plan_.variants[i].name != name, "{}variant {} occurs twice", at, name);
      check(identity_[i] != identity, "{}variants {} and {} have the same settings", at,
            plan_.variants[i].name, name);
    }
    check(plan_.variants.size() < kMaxVariants, "{}expected at most {} variants", at, kMaxVariants);
    SweepVariant variant = resolved_variant(change, at);
    variant.name = name;
    variant.note = note;
    for (const Placed& placed : change) variant.changes.push_back(placed.setting);
    plan_.variants.push_back(std::move(variant));
    identity_.push_back(identity);
  }

  void keep_chosen() {
    if (changes_.variants.empty()) return;
    as_usage([&] { check_chosen(); });
    const std::string base = plan_.variants.front().name;
    std::erase_if(plan_.variants, [&](const SweepVariant& variant) {
      return variant.name != base && std::ranges::count(changes_.variants, variant.name) == 0;
    });
  }

  void check_chosen() const {
    std::vector<std::string_view> names;
    for (const SweepVariant& variant : plan_.variants) names.push_back(variant.name);
    for (const std::string& chosen : changes_.variants) {
      if (std::ranges::count(names, chosen) > 0) continue;
      const std::string_view best = nearest(chosen, names);
      fail(best.empty() ? Hint{} : Hint{fmt::format("did you mean {}?", best)}, "{} has no variant '{}'",
           name_, chosen.substr(0, kShown));
    }
  }

  std::vector<TomlSection> sections_;
  std::string name_;
  const SweepChanges& changes_;
  Settings base_;
  SweepPlan plan_;
  std::vector<std::string> identity_;  // of each variant
};

}  // namespace

std::span<const SweepOption> train_options() {
  return kOptions;
}

std::string SweepVariant::changes_text() const {
  std::vector<std::string> parts;
  for (const SweepSetting& change : changes) parts.push_back(change.key + "=" + change.value);
  return joined(parts, " ");
}

const std::string* SweepVariant::option(std::string_view name) const {
  const auto found = std::ranges::find(options, name, &SweepSetting::key);
  return found == options.end() ? nullptr : &found->value;
}

SweepPlan parse_sweep(std::string_view toml, std::string_view name, const SweepChanges& changes) {
  return SweepReader(toml, name, changes).read();
}

std::vector<std::string> train_words(const SweepVariant& variant, bool with_data) {
  std::vector<std::string> words;
  for (const SweepSetting& setting : variant.options) {
    const SweepOption& option = *find_option(setting.key);
    const bool of_model = option.key == "init_model";
    if (option.of_data && !with_data && !of_model) continue;
    words.push_back(fmt::format("--{}", option.flag));
    if (!option.is_flag) words.push_back(setting.value);
  }
  for (const SweepSetting& setting : variant.settings) {
    words.push_back("--set");
    words.push_back(setting.key + "=" + setting.value);
  }
  return words;
}

}  // namespace thimble
