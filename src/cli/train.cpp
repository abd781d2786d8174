#include "cli/train.h"

#include <string>

#include "base/error.h"
#include "base/machine.h"
#include "cli/console.h"
#include "cli/dry_run.h"
#include "cli/parse.h"
#include "model/config_builder.h"
#include "model/depth.h"
#include "model/presets.h"

namespace thimble {

namespace {

constexpr std::string_view kDefaultPreset = "quick";

// What is wrong with a setting on the command line is wrong usage.
template <class Action>
void as_usage(Action action) {
  try {
    action();
  } catch (const Error& error) {
    throw UsageError(error.what(), Hint{error.hint()}, error.where());
  }
}

ConfigBuilder settings_from(const Arguments& arguments) {
  ConfigBuilder settings;
  if (arguments.given("preset"))
    settings.preset(arguments.text("preset"));
  else if (!arguments.given("config"))
    settings.preset(kDefaultPreset);
  if (arguments.given("config")) settings.file(arguments.path("config"));
  as_usage([&] {
    for (const std::string& assignment : arguments.list("set")) settings.set(assignment);
    for (const Key& key : all_keys())
      if (arguments.given(key.dashed)) settings.set_flag(key, arguments.text(key.dashed));
  });
  return settings;
}

DType compute_dtype(ComputeDType choice) {
  switch (choice) {
    case ComputeDType::f32:
      return DType::f32;
    case ComputeDType::bf16:
      return DType::bf16;
    case ComputeDType::f16:
      return DType::f16;
    case ComputeDType::automatic:
      break;
  }
  return training_dtype(cpu_features()).dtype == "bf16" ? DType::bf16 : DType::f32;
}

int run_train(const Arguments& arguments, Console& console) {
  ConfigBuilder settings = settings_from(arguments);
  std::vector<std::string> derivations;
  if (arguments.given("depth"))
    derivations = apply_depth(settings, arguments.integer("depth", {.least = 1, .most = kMaxDepth}));
  const Config config = settings.resolve();
  if (!arguments.flag("dry-run"))
    fail(Hint{"--dry-run prints the resolved settings and what they cost"}, "this build cannot train yet");

  const DryRun run{settings, config, summarise(config, compute_dtype(config.train.dtype)), derivations};
  if (console.json())
    console.print_json(as_json(run));
  else
    console.print(as_text(run));
  return 0;
}

Option option_of(const Key& key) {
  Option option{.name = key.dashed, .help = key.help, .choices = key.choices};
  if (key.type == KeyType::flag) option.choices = {"true", "false"};
  if (key.type == KeyType::integer) option.value = "N";
  if (key.type == KeyType::number) option.value = "F";
  return option;
}

}  // namespace

Command train_command() {
  std::vector<std::string_view> presets;
  for (const Preset& preset : all_presets()) presets.push_back(preset.name);
  Command command = {
      .name = "train",
      .summary = "train a model",
      .options =
          {{.name = "preset",
            .help = "settings to start from (default: quick, or none with --config)",
            .choices = presets},
           {.name = "config", .value = "FILE", .help = "TOML file of settings, on top of the preset"},
           {.name = "set", .value = "KEY=VALUE", .help = "one setting, on top of both", .repeated = true},
           {.name = "depth",
            .value = "N",
            .help = "layers; width, batch and learning rates follow the preset's proportions"},
           {.name = "dry-run", .help = "print the resolved settings and what they cost, and stop"},
           common::json(),
           common::quiet()},
      .examples = {"thimble train --preset golf --dry-run",
                   "thimble train --preset llama --depth 6 --dry-run",
                   "thimble train --preset golf --set layers=11 --logit-softcap 0 --dry-run"},
      .run = run_train};
  for (const Key& key : all_keys()) command.options.push_back(option_of(key));
  return command;
}

}  // namespace thimble
