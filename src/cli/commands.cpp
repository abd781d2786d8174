#include "cli/commands.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "cli/help.h"
#include "cli/option.h"
#include "cli/train_inputs.h"
#include "config/keys.h"

namespace thimble {

// Each command is defined in the .cpp named after its first word: bench_train_command() in
// bench.cpp.
Command train_command();
Command golf_command();
Command sweep_command();
Command sweep_report_command();
Command sweep_record_command();
Command eval_command();
Command generate_command();
Command chat_command();
Command serve_command();
Command bench_command();
Command bench_train_command();
Command bench_prefill_command();
Command bench_decode_command();
Command bench_tokenize_command();
Command tokenizer_train_command();
Command tokenizer_encode_command();
Command tokenizer_decode_command();
Command tokenizer_render_command();
Command tokenizer_info_command();
Command data_build_command();
Command data_info_command();
Command data_sample_command();
Command pack_command();
Command export_command();
Command import_command();
Command merge_command();
Command plot_command();
Command compare_command();
Command inspect_command();
Command qa_command();
Command trace_command();
Command diff_command();
Command doctor_command();
Command completions_command();
Command man_command();

std::vector<Command> all_commands() {
  std::vector<Command> commands;
  const auto add = [&](std::string_view task, std::vector<Command> group) {
    for (Command& command : group) commands.emplace_back(std::move(command)).task = task;
  };
  // `bench` and `sweep` come after their subcommands: completions take the first match.
  add("train", {train_command(), golf_command(), sweep_report_command(), sweep_record_command(),
                sweep_command(), plot_command(), compare_command()});
  add("use a model", {generate_command(), chat_command(), serve_command()});
  add("measure", {eval_command(), qa_command(), bench_train_command(), bench_prefill_command(),
                  bench_decode_command(), bench_tokenize_command(), bench_command()});
  add("pack and convert", {pack_command(), export_command(), import_command(), merge_command()});
  add("prepare data", {data_build_command(), data_info_command(), data_sample_command(),
                       tokenizer_train_command(), tokenizer_encode_command(), tokenizer_decode_command(),
                       tokenizer_render_command(), tokenizer_info_command()});
  add("inspect", {inspect_command(), trace_command(), diff_command()});
  add("installation", {doctor_command(), completions_command(), man_command()});
  return commands;
}

namespace {

const Command* with_name(std::span<const Command> commands, std::string_view name) {
  for (const Command& command : commands)
    if (command.name == name || std::count(command.aliases.begin(), command.aliases.end(), name) > 0)
      return &command;
  return nullptr;
}

// The name or alias that was probably meant, or empty.
std::string_view nearest_command(std::span<const Command> commands, const std::string& name) {
  std::vector<std::string_view> names;
  for (const Command& command : commands) {
    names.push_back(command.name);
    names.insert(names.end(), command.aliases.begin(), command.aliases.end());
  }
  names.push_back("--version");
  if (const std::string_view best = synonym(name, names); !best.empty()) return best;
  names.pop_back();
  return nearest(name, names);
}

[[noreturn]] void throw_unknown(std::span<const Command> commands, const std::string& name) {
  const std::string_view best = nearest_command(commands, name);
  throw UsageError(fmt::format("unknown command '{}'", name),
                   best.empty() ? Hint{} : Hint{fmt::format("did you mean '{}'?", best)});
}

}  // namespace

CommandMatch find_command(std::span<const Command> commands, const std::vector<std::string>& words) {
  const bool second = words.size() > 1 && !words[1].starts_with('-');
  if (second) {
    const std::string both = words[0] + " " + words[1];
    if (const Command* command = with_name(commands, both)) return {command, 2};
  }
  const bool group = std::any_of(commands.begin(), commands.end(), [&](const Command& command) {
    return command.name.starts_with(words[0] + " ");
  });
  if (const Command* command = with_name(commands, words[0])) {
    // "bench" is a command and a group: "bench decdoe" is a misspelled subcommand, unless a file.
    const bool misspelled = group && second && !nearest_command(commands, words[0] + " " + words[1]).empty();
    if (misspelled && !std::filesystem::exists(words[1])) throw_unknown(commands, words[0] + " " + words[1]);
    return {command, 1};
  }

  if (group && second) throw_unknown(commands, words[0] + " " + words[1]);
  if (group) return {nullptr, 1};
  throw_unknown(commands, words[0]);
}

}  // namespace thimble
