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

// The environment of the process, overridden by flags.
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
  if (arguments.flag("resume") && !golf.run_id_was_named)
    throw UsageError("--resume needs the RUN_ID of the interrupted run",
                     Hint{"set RUN_ID or pass --run-id; the log of a run is named after it"});
  share_text(*ranks, golf.run_id, "RUN_ID");
  golf.ranks = ranks->size();
  std::shared_ptr<DeviceRuntime> device;
  on_all_ranks(*ranks, "opening the device", [&] {
    check(golf.grad_accum_steps % golf.ranks == 0, Hint{"use 1, 2, 4 or 8 ranks"},
          "the {1} micro-steps of a step cannot be divided among {0} ranks", golf.ranks,
          golf.grad_accum_steps);
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
             .resume = arguments.flag("resume"),
             .code_bytes = static_cast<std::uint64_t>(arguments.integer("code-bytes", {.least = 0}))});
  if (!ranks->first()) return 0;
  if (result.interrupted) {
    console.log().warning("interrupted at step {}; to continue, run the same command with{} --resume",
                          result.training.steps,
                          golf.run_id_was_named ? "" : fmt::format(" --run-id {}", golf.run_id));
    return kExitInterrupted;
  }
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
      .summary = "drop-in replacement for parameter-golf's train_gpt_mlx.py and train_gpt.py",
      .options = {{.name = "like",
                   .initial = "mlx",
                   .help = "script to imitate: train_gpt_mlx.py or train_gpt.py",
                   .choices = {"mlx", "torch"}},
                  {.name = "resume",
                   .help = "continue the interrupted run of this RUN_ID, with the same environment, and "
                           "write all its files"},
                  {.name = "plus", .help = "use the record techniques of the preset golf-plus"},
                  {.name = "list-env", .help = "print the environment variables, then exit"},
                  {.name = "data", .value = "DIR", .help = "folder of shards; overrides DATA_PATH"},
                  {.name = "tokenizer",
                   .value = "FILE",
                   .help = "SentencePiece .model file; overrides TOKENIZER_PATH"},
                  {.name = "run-id",
                   .value = "NAME",
                   .help = "name of the log and outputs; overrides RUN_ID"},
                  {.name = "output",
                   .letter = 'o',
                   .value = "DIR",
                   .help = "folder of the log and all outputs; overrides OUT_DIR"},
                  {.name = "code-bytes",
                   .value = "N",
                   .initial = "0",
                   .help = "with --like torch: size of the submitted code, in bytes"},
                  {.name = "set",
                   .value = "KEY=VALUE",
                   .help = "one setting; overrides the environment",
                   .repeated = true},
                  device_option(),
                  rank_timeout_option(),
                  common::force(),
                  common::threads(),
                  common::quiet()},
      .notes = "Settings come from the environment variables of the script, then from options.",
      .examples = {"thimble golf --list-env",
                   "RUN_ID=mlx_smoke ITERATIONS=200 TRAIN_BATCH_TOKENS=8192 VAL_LOSS_EVERY=0 thimble golf",
                   "NUM_LAYERS=11 thimble golf --like torch --max-seconds 600",
                   "RUN_ID=mlx_smoke thimble golf --resume", "thimble golf --plus --steps 500"},
      .run = run_golf_command};
  for (const Option& option : setting_options("golf")) command.options.push_back(option);
  return command;
}

}  // namespace thimble
