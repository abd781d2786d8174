#include "cli/train.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>

#include "base/error.h"
#include "base/files.h"
#include "base/interrupt.h"
#include "base/json.h"
#include "base/table.h"
#include "cli/console.h"
#include "cli/dry_run.h"
#include "cli/parse.h"
#include "model/config_builder.h"
#include "model/depth.h"
#include "model/presets.h"
#include "train/checkpoint.h"
#include "train/loop.h"
#include "train/run_folder.h"

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

DataSettings data_from(const Arguments& arguments) {
  if (!arguments.given("data"))
    throw UsageError("--data is missing", Hint{"name a text file: thimble train --data FILE.txt"});
  const bool sequential = arguments.text("order") == "sequential";
  return {std::filesystem::absolute(arguments.path("data")),
          arguments.given("val-data") ? std::filesystem::absolute(arguments.path("val-data"))
                                      : std::filesystem::path(),
          arguments.number("val-fraction", {.least = 0.001, .most = 0.9}),
          sequential ? ReadOrder::sequential : ReadOrder::shuffled};
}

void print_result(const TrainResult& result, Console& console) {
  if (console.json()) {
    Json json =
        Json::object().set("status", result.status).set("steps", result.steps).set("tokens", result.tokens);
    json.set("train_loss", result.train_loss);
    if (result.validated) json.set("val_loss", result.val_loss).set("val_bpb", result.val_bpb);
    json.set("best_step", result.best_step).set("seconds", result.seconds);
    json.set("tokens_per_second", result.tokens_per_second).set("checkpoint", result.checkpoint.string());
    console.print_json(json);
    return;
  }
  std::string line = fmt::format("{} at step {}", result.status, result.steps);
  if (result.seconds > 0) line += fmt::format(": train {:.4f}", result.train_loss);
  if (result.validated)
    line += fmt::format(", val {:.4f} nats, {:.4f} bits per byte", result.val_loss, result.val_bpb);
  if (result.seconds > 0)
    line +=
        fmt::format(", {} at {} tokens/s", in_seconds(result.seconds), with_unit(result.tokens_per_second));
  console.print(fmt::format("{}\n{}\n", line, result.checkpoint.string()));
}

int exit_code(const TrainResult& result) {
  if (result.status == "interrupted") return 130;
  return result.status == "diverged" ? 1 : 0;
}

int run_and_print(TrainRequest request, Console& console) {
  request.data = load_text(request.source.data, request.source.val_data, request.source.val_fraction,
                           *request.tokenizer);
  const Interrupt interrupt;
  const TrainResult result = train(request, console.log(), console.progress(), interrupt);
  print_result(result, console);
  return exit_code(result);
}

// Keys that may change on the way; the others would make another run of it.
bool may_change_on_resume(const Key& key) {
  static constexpr std::string_view kKeys[] = {"steps",      "max_seconds",      "val_every",
                                               "val_tokens", "checkpoint_every", "keep"};
  return std::ranges::find(kKeys, key.name) != std::end(kKeys);
}

int resume(const Arguments& arguments, Console& console) {
  const std::filesystem::path run = arguments.path("resume");
  for (std::string_view name : {"preset", "config", "set", "depth", "output", "tokenizer", "val-fraction",
                                "order", "force", "dry-run"})
    if (arguments.given(name))
      throw UsageError(fmt::format("--{} cannot be changed by --resume", name),
                       Hint{"a run keeps its settings"});
  CheckpointHead head = read_checkpoint_head(SafetensorsFile::open(run / "last.safetensors"));
  as_usage([&] {
    for (const Key& key : all_keys()) {
      if (!arguments.given(key.dashed)) continue;
      check(may_change_on_resume(key), "--{} cannot be changed by --resume", key.dashed);
      key.put(head.config, value_from_text(key, arguments.text(key.dashed), "--" + key.dashed + ": "));
    }
  });
  constexpr std::uint64_t kMaxSettingsBytes = 1 << 20;
  const std::filesystem::path settings = run / "data.json";
  DataSettings source = DataSettings::from_json(read_file(settings, kMaxSettingsBytes), settings.string());
  if (arguments.given("data")) source.data = std::filesystem::absolute(arguments.path("data"));
  if (arguments.given("val-data")) source.val_data = std::filesystem::absolute(arguments.path("val-data"));
  return run_and_print({.config = resolved(head.config),
                        .tokenizer = std::move(head.tokenizer),
                        .data = {},
                        .source = source,
                        .run = run,
                        .resume = true,
                        .replace = false,
                        .stop_after = arguments.integer("stop-after", {.least = 0})},
                       console);
}

int dry_run(const ConfigBuilder& settings, const std::vector<std::string>& derivations, Console& console) {
  const Config config = settings.resolve();
  const DryRun run{settings, config, summarise(config), derivations};
  if (console.json())
    console.print_json(as_json(run));
  else
    console.print(as_text(run));
  return 0;
}

int run_train(const Arguments& arguments, Console& console) {
  if (arguments.given("resume")) return resume(arguments, console);
  ConfigBuilder settings = settings_from(arguments);
  std::vector<std::string> derivations;
  if (arguments.given("depth"))
    derivations = apply_depth(settings, arguments.integer("depth", {.least = 1, .most = kMaxDepth}));
  if (arguments.flag("dry-run")) return dry_run(settings, derivations, console);

  const DataSettings source = data_from(arguments);
  std::shared_ptr<const Tokenizer> tokenizer = load_tokenizer(arguments.path("tokenizer"));
  const std::int64_t vocab_size = tokenizer->vocab_size();
  check(!settings.given("vocab_size") || settings.current().model.vocab_size == vocab_size,
        Hint{"leave out vocab_size: the tokenizer decides"}, "vocab_size is {}, the tokenizer has {} tokens",
        settings.current().model.vocab_size, vocab_size);
  settings.derive("vocab_size", vocab_size);
  const std::string preset = settings.preset_name().empty() ? "run" : settings.preset_name();
  return run_and_print(
      {.config = settings.resolve(),
       .tokenizer = std::move(tokenizer),
       .data = {},
       .source = source,
       .run = arguments.given("output") ? arguments.path("output") : RunFolder::next_free(preset),
       .resume = false,
       .replace = arguments.flag("force"),
       .stop_after = arguments.integer("stop-after", {.least = 0})},
      console);
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
           {.name = "data", .value = "FILE", .help = "text to train on"},
           {.name = "val-data", .value = "FILE", .help = "text to validate on (default: the end of --data)"},
           {.name = "val-fraction", .value = "F", .initial = "0.1", .help = "how much of --data that is"},
           {.name = "order",
            .initial = "shuffled",
            .help = "how rows are read",
            .choices = {"shuffled", "sequential"}},
           {.name = "tokenizer",
            .value = "T",
            .initial = "bytes",
            .help = "a file, a folder, or the word bytes"},
           {.name = "output",
            .letter = 'o',
            .value = "RUN",
            .help = "folder of the run (default: runs/PRESET-N)"},
           {.name = "resume", .value = "RUN", .help = "go on with a run"},
           {.name = "stop-after",
            .value = "N",
            .initial = "0",
            .help = "save and stop after N steps; 0: at the end"},
           {.name = "dry-run", .help = "print the resolved settings and what they cost, and stop"},
           common::force(),
           common::threads(),
           common::json(),
           common::quiet()},
      .examples = {"thimble train --data book.txt -o runs/book",
                   "thimble train --resume runs/book --steps 5000", "thimble train --preset golf --dry-run",
                   "thimble train --preset llama --depth 6 --dry-run",
                   "thimble train --preset golf --set layers=11 --logit-softcap 0 --dry-run"},
      .run = run_train};
  for (const Key& key : all_keys()) command.options.push_back(option_of(key));
  return command;
}

}  // namespace thimble
