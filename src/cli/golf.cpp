#include "cli/option.h"

#include <fmt/format.h>
#include <unistd.h>

#include "base/error.h"
#include "base/json.h"
#include "base/signals.h"
#include "cli/console.h"
#include "cli/parse.h"
#include "cli/train_inputs.h"
#include "dist/communicator.h"
#include "dist/plugins.h"
#include "golf/run.h"

namespace thimble {

namespace {

// The process's variables; the flags that stand for some of them on top.
Variables variables_from(const Arguments& arguments) {
  Variables variables;
  for (char** entry = environ; *entry; ++entry) {
    const std::string_view text = *entry;
    const std::size_t equals = text.find('=');
    if (equals != text.npos) variables.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  for (const auto& [flag, name] : {std::pair{"data", "DATA_PATH"},
                                   {"tokenizer", "TOKENIZER_PATH"},
                                   {"run-id", "RUN_ID"},
                                   {"output", "OUT_DIR"}})
    if (arguments.given(flag)) variables[name] = arguments.text(flag);
  return variables;
}

int golf_on_rank(const Arguments& arguments, Console& console, const std::shared_ptr<Communicator>& ranks) {
  const Interrupt interrupt;
  GolfSettings golf;
  on_all_ranks(*ranks, "reading the settings", [&] {
    as_usage([&] {
      golf = golf_settings({.script = arguments.text("like") == "torch" ? GolfScript::torch : GolfScript::mlx,
                            .plus = arguments.flag("plus"),
                            .environment = variables_from(arguments),
                            .flags = [&](ConfigBuilder& settings) { put_settings(arguments, settings); }});
    });
  });
  share_text(*ranks, golf.run_id, "RUN_ID");
  golf.ranks = ranks->size();
  std::shared_ptr<DeviceRuntime> device;
  on_all_ranks(*ranks, "opening the device", [&] {
    check(golf.grad_accum_steps % golf.ranks == 0, Hint{"1, 2, 4 or 8 ranks share its 8 spans"},
          "{} ranks cannot share {} spans of a step equally", golf.ranks, golf.grad_accum_steps);
    device = device_from(arguments, console.log(), ranks->local_rank());
  });
  const GolfResult result = run_golf(
      golf, {.print = [&](std::string_view line) { console.print(fmt::format("{}\n", line)); },
             .log = console.log(),
             .interrupt = interrupt,
             .device = device,
             .ranks = ranks,
             .gpus = join_gpus(*ranks, device),
             .force = arguments.flag("force"),
             .code_bytes = static_cast<std::uint64_t>(arguments.integer("code-bytes", {.least = 0}))});
  if (!ranks->first()) return 0;
  if (result.training.status == RunStatus::interrupted)
    console.log().warning("interrupted at step {}: go on with `thimble train --resume {}`",
                          result.training.steps, golf.run_folder().string());
  if (result.training.status == RunStatus::diverged)
    console.log().warning("the run diverged at step {}: nothing was exported", result.training.steps);
  return exit_code(result.training);
}

int run_golf_command(const Arguments& arguments, Console& console) {
  if (arguments.flag("list-env")) {
    console.print(golf_variables_text());
    return 0;
  }
  const std::shared_ptr<Communicator> ranks = ranks_from(arguments);
  Console silent(false, true);
  return on_ranks(*ranks, [&] {
    check_same_command(*ranks, arguments);
    return golf_on_rank(arguments, ranks->first() ? console : silent, ranks);
  });
}

}  // namespace

Command golf_command() {
  Command command = {
      .name = "golf",
      .summary = "drop-in for train_gpt_mlx.py and train_gpt.py: their environment, their log",
      .options =
          {{.name = "like",
            .initial = "mlx",
            .help = "whose defaults, reading order and log lines: train_gpt_mlx.py's or train_gpt.py's",
            .choices = {"mlx", "torch"}},
           {.name = "plus", .help = "with the record techniques of the preset golf-plus"},
           {.name = "list-env", .help = "print the environment variables that are read, and stop"},
           {.name = "data", .value = "DIR", .help = "instead of DATA_PATH: folder of the shards"},
           {.name = "tokenizer", .value = "FILE", .help = "instead of TOKENIZER_PATH: SentencePiece .model"},
           {.name = "run-id", .value = "NAME", .help = "instead of RUN_ID: names log and outputs"},
           {.name = "output",
            .letter = 'o',
            .value = "DIR",
            .help = "instead of OUT_DIR: folder of log and outputs"},
           {.name = "code-bytes",
            .value = "N",
            .initial = "0",
            .help = "like torch: bytes of the program that is submitted with the model"},
           {.name = "set",
            .value = "KEY=VALUE",
            .help = "one setting, on top of the environment",
            .repeated = true},
           device_option(),
           rank_timeout_option(),
           common::force(),
           common::threads(),
           common::quiet()},
      .examples = {"thimble golf --list-env",
                   "RUN_ID=mlx_smoke ITERATIONS=200 TRAIN_BATCH_TOKENS=8192 VAL_LOSS_EVERY=0 thimble golf",
                   "NUM_LAYERS=11 thimble golf --like torch --max-seconds 600",
                   "thimble golf --plus --steps 500"},
      .run = run_golf_command};
  for (const Option& option : setting_options()) command.options.push_back(option);
  return command;
}

}  // namespace thimble
