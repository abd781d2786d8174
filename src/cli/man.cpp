// thimble man: the man page and the reference pages of docs/reference, generated from the tables of
// the program.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/machine.h"
#include "base/text.h"
#include "base/utf8.h"
#include "cli/commands.h"
#include "cli/console.h"
#include "cli/help.h"
#include "cli/option.h"
#include "cli/parse.h"
#include "config/builder.h"
#include "golf/environment.h"

namespace thimble {

namespace {

constexpr std::string_view kDate = "2026-11-19";  // fixed, so that builds are reproducible

using Entry = std::pair<std::string_view, std::string_view>;

constexpr std::string_view kWhatItIs =
    "thimble trains GPT models on a CPU or a CUDA GPU, measures them in bits per byte, packs them into small "
    "files, generates text, chats, serves an OpenAI-style API, and reads and writes GGUF and Hugging Face "
    "models.";
constexpr std::string_view kConventions =
    "MODEL is a run folder (its best checkpoint, or the last one if the run was not validated), a "
    "checkpoint, a .thimble artifact, a GGUF file or a Hugging Face folder. Results are written to stdout, "
    "progress and messages to stderr. Existing output is overwritten only with --force.";

constexpr std::array kExitCodes = {
    Entry{"0", "success; also when max_seconds, patience, target_val_loss or --stop-after ended training"},
    Entry{"1", "failure: stderr has the error and a hint"},
    Entry{"2", "invalid command line"},
    Entry{"3", "training diverged; checkpoints saved before are kept"},
    Entry{"130", "interrupted by Ctrl-C; training saves a checkpoint first"},
};

constexpr std::array kEnvironment = {
    Entry{"COLUMNS", "width of help and tables; default: the width of the terminal"},
    Entry{"NO_COLOR", "if set, output has no colors"},
    Entry{"TERM", "if dumb, output has no colors and chat has no line editing"},
    Entry{"OMP_NUM_THREADS", "number of CPU threads; --threads takes precedence"},
    Entry{"OMP_WAIT_POLICY, GOMP_SPINCOUNT",
          "how long idle OpenMP threads spin; default: a short time (GOMP_SPINCOUNT=1000)"},
    Entry{"THIMBLE_API_KEY", "key that clients of thimble serve must send, like --api-key"},
    Entry{"CUDA_VISIBLE_DEVICES",
          "GPUs that CUDA may use; with one GPU listed, all ranks of this machine share it"},
    Entry{"THIMBLE_CUDA_PLUGIN, THIMBLE_MPI_PLUGIN, THIMBLE_NCCL_PLUGIN",
          "path of a plugin; default: beside the binary or in ../lib"},
    Entry{"THIMBLE_NCCL", "if 1, sum gradients with NCCL even with a single rank"},
    Entry{"THIMBLE_CPU",
          "highest CPU level to use: scalar, avx2, avx512, avx512_bf16 or amx; default: the highest that the "
          "CPU supports"},
    Entry{"XDG_STATE_HOME, HOME", "folder of the history of thimble chat"},
};

constexpr std::array kFiles = {
    Entry{"runs/PRESET-N",
          "default run folder (-o names another): checkpoints/*.safetensors, best.safetensors, "
          "last.safetensors, config.toml, the tokenizer, metrics.jsonl, run.json and report.html"},
    Entry{"*.thimble", "packed model: weights, config and tokenizer in one file"},
    Entry{"~/.local/state/thimble", "history of thimble chat"},
    Entry{"libthimble_cuda.so", "CUDA plugin, beside the binary or in ../lib; loaded on first use"},
};

// Escapes text for roff: minus signs that can be copied, straight quotes, and no line that is a
// request.
std::string escaped(std::string_view text) {
  static constexpr std::array kNames = {Entry{"\\", "\\e"},  Entry{"-", "\\-"},   Entry{"'", "\\(aq"},
                                        Entry{"`", "\\(ga"}, Entry{"^", "\\(ha"}, Entry{"~", "\\(ti"},
                                        Entry{"\"", "\\(dq"}};
  std::string out = text.starts_with('.') ? "\\&" : "";
  while (!text.empty()) {
    const std::string_view here = text.substr(0, 1);
    const Utf8Char next = decode_utf8(text.data(), text.data() + text.size());
    text.remove_prefix(next.bytes);
    const auto named =
        std::find_if(kNames.begin(), kNames.end(), [&](const Entry& e) { return e.first == here; });
    if (named != kNames.end())
      out += named->second;
    else if (next.code < 0x80)
      out += static_cast<char>(next.code);
    else
      out += fmt::format("\\[u{:04X}]", static_cast<unsigned>(next.code));
  }
  return out;
}

std::string bold(std::string_view text) {
  return fmt::format("\\fB{}\\fR", escaped(text));
}

std::string item(const std::string& term, std::string_view meaning) {
  return fmt::format(".TP\n{}\n{}\n", term, escaped(meaning));
}

std::string items(std::span<const Entry> entries) {
  std::string text;
  for (const auto& [term, meaning] : entries) text += item(bold(term), meaning);
  return text;
}

std::string term_of(const Option& option) {
  std::string term = option.letter ? bold(fmt::format("-{}", option.letter)) + ", " : "";
  term += bold(fmt::format("--{}", option.name));
  if (!option.is_flag()) term += fmt::format(" \\fI{}\\fR", escaped(value_of(option)));
  return term;
}

std::string command_section(const Command& command) {
  std::string text = fmt::format(".SS {}\n{}\n", escaped(usage_of(command)), escaped(command.summary));
  for (std::string_view alias : command.aliases)
    text += fmt::format("(alias: {})\n", bold(fmt::format("thimble {}", alias)));
  for (const Argument& argument : command.arguments)
    text += item(fmt::format("\\fI{}\\fR", escaped(usage_of(argument))), argument.help);
  for (const Option& option : options_of(command)) text += item(term_of(option), described(option));
  if (!command.notes.empty()) text += fmt::format(".PP\n{}\n", escaped(command.notes));
  if (!command.examples.empty()) text += ".PP\nExamples:\n.PP\n.nf\n.RS 4\n";
  for (std::string_view example : command.examples) text += escaped(example) + "\n";
  if (!command.examples.empty()) text += ".RE\n.fi\n";
  return text;
}

}  // namespace

std::string man_page(std::span<const Command> commands) {
  std::string text = fmt::format(".TH THIMBLE 1 \"{}\" \"thimble {}\" \"User Commands\"\n", kDate, version());
  text +=
      ".SH NAME\nthimble \\- train, measure, pack, serve and export small language models\n"
      ".SH SYNOPSIS\n.B thimble\n\\fICOMMAND\\fR [\\fIarguments\\fR] [\\fIoptions\\fR]\n.br\n"
      ".B thimble\n\\fICOMMAND\\fR \\fB\\-\\-help\\fR | \\fB\\-\\-help\\fR | \\fB\\-\\-version\\fR\n"
      ".SH DESCRIPTION\n";
  text += escaped(kWhatItIs) + "\n.PP\n" + escaped(kConventions) + "\n.SH COMMANDS\n";
  for (const Command& command : commands) text += command_section(command);
  text += ".SH EXIT STATUS\n" + items(kExitCodes);
  text += ".SH ENVIRONMENT\n" + items(kEnvironment);
  text += ".PP\nFor the variables of the golf scripts see " + bold("thimble golf --list-env") + ".\n";
  text += ".SH FILES\n" + items(kFiles);
  return text;
}

namespace {

std::string capitalized(std::string_view text) {
  std::string out(text);
  if (!out.empty()) out[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(out[0])));
  return out;
}

// Text for a cell of a Markdown table.
std::string cell(std::string_view text) {
  std::string out;
  for (const char c : text)
    if (c == '|' || c == '<' || c == '*' || c == '_')
      out += fmt::format("\\{}", c);
    else
      out += c;
  return out;
}

// Text between backticks in a table, where a bar must be escaped as well.
std::string code(std::string_view text) {
  std::string out = "`";
  for (const char c : text) out += c == '|' ? std::string("\\|") : std::string(1, c);
  return out + "`";
}

std::string table(const std::vector<std::string>& header, const std::vector<std::vector<std::string>>& rows) {
  std::string text = fmt::format("| {} |\n|", joined(header, " | "));
  for (std::size_t i = 0; i < header.size(); ++i) text += "---|";
  text += "\n";
  for (const auto& row : rows) text += fmt::format("| {} |\n", joined(row, " | "));
  return text + "\n";
}

std::string terms(const std::vector<std::string>& header, std::span<const Entry> entries) {
  std::vector<std::vector<std::string>> rows;
  for (const auto& [term, meaning] : entries) {
    std::string names;  // of a list such as "HOME, TERM", each between backticks
    for (const char c : code(term))
      names += c == ',' ? std::string("`,") : c == ' ' ? " `" : std::string(1, c);
    rows.push_back({names, cell(meaning)});
  }
  return table(header, rows);
}

std::string page_head(std::string_view title, std::string_view page, std::string_view lead) {
  return fmt::format("<!-- Generated by `thimble man --markdown {}`; do not edit. -->\n# {}\n\n{}\n", page,
                     title, paragraph(lead));
}

std::string option_term(const Option& option) {
  const std::string value = option.is_flag()         ? ""
                            : option.choices.empty() ? " " + value_of(option)
                                                     : " VALUE";
  const std::string name = code(fmt::format("--{}{}", option.name, value));
  return option.letter ? code(fmt::format("-{}", option.letter)) + ", " + name : name;
}

std::string option_meaning(const Option& option) {
  std::string text = cell(option.help);
  if (!option.choices.empty()) {
    std::vector<std::string> names;
    for (const std::string_view choice : option.choices) names.push_back(code(choice));
    text += ": " + joined(names, ", ");
  }
  if (option.required) text += "; required";
  if (option.repeated) text += "; may be repeated";
  return text;
}

std::string default_of(const Option& option) {
  if (!option.shown_default.empty()) return cell(option.shown_default);
  return option.initial.empty() ? "" : code(option.initial);
}

std::string commands_page() {
  const std::vector<Command> all = all_commands();
  std::string text =
      page_head("Commands", "commands",
                "Every command of `thimble` with its options. Numbers may end in a unit in powers of "
                "1000: `--budget 500k`, `--steps 2.5k`, `--val-tokens 1M`, `--size 1G`.");
  std::vector<std::vector<std::string>> tasks;
  for (const Command& command : all) {
    std::string anchor = fmt::format("thimble-{}", command.name);
    std::ranges::replace(anchor, ' ', '-');
    const std::string link = fmt::format("[{}](#{})", command.name, anchor);
    if (tasks.empty() || tasks.back()[0] != command.task)
      tasks.push_back({std::string(command.task), link});
    else
      tasks.back()[1] += ", " + link;
  }
  text += table({"task", "commands"}, tasks);
  for (const Command& command : all) {
    text += fmt::format("## thimble {}\n\n{}\n\n", command.name, cell(capitalized(command.summary) + "."));
    text += fmt::format("```\n{}\n```\n\n", usage_of(command));
    for (const std::string_view alias : command.aliases)
      text += fmt::format("Alias: `thimble {}`.\n\n", alias);
    std::vector<std::vector<std::string>> rows;
    for (const Argument& argument : command.arguments)
      rows.push_back({code(usage_of(argument)), cell(argument.help)});
    if (!rows.empty()) text += table({"argument", "meaning"}, rows);

    rows.clear();
    bool has_settings = false;
    for (const Option& option : options_of(command)) {
      std::string key(option.name);
      std::ranges::replace(key, '-', '_');
      const Key* const setting = find_key(key);
      if (option.advanced && setting && setting->help == option.help)
        has_settings = true;
      else
        rows.push_back({option_term(option), option_meaning(option), default_of(option)});
    }
    text += table({"option", "meaning", "default"}, rows);
    if (has_settings) text += "Every key of the [configuration](config.md) is also an option.\n\n";
    if (!command.notes.empty()) text += paragraph(cell(command.notes)) + "\n";
    if (command.examples.empty()) continue;
    text += "```\n";
    for (const std::string_view example : command.examples) text += fmt::format("{}\n", example);
    text += "```\n\n";
  }
  return text;
}

// "1 to 1024", "`rms`, `layer`".
std::string accepted(const Key& key) {
  switch (key.type) {
    case KeyType::flag:
      return "`true`, `false`";
    case KeyType::integer:
      return fmt::format("{} to {}", std::int64_t(key.least), std::int64_t(key.most));
    case KeyType::number:
      return fmt::format("{} to {}", key.least, key.most);
    case KeyType::list:
      return "numbers, separated by commas";
    case KeyType::choice:
    case KeyType::set:
      break;
  }
  std::vector<std::string> names;
  for (const std::string_view choice : key.choices) names.push_back(code(choice));
  return (key.type == KeyType::set ? "any of " : "") + joined(names, ", ");
}

std::string config_page() {
  std::string text = page_head(
      "Configuration", "config",
      "A configuration is a TOML file of `key = value` lines for `thimble train --config FILE`. Each key "
      "is also an option (`mlp_hidden` is `--mlp-hidden`) and can be set with `--set key=value`. Defaults "
      "apply first, then the preset, then the file, then options; `thimble train --dry-run` prints every "
      "value and where it comes from. The line `preset = \"NAME\"` in a file starts from a preset. On the "
      "command line, "
      "numbers may end in k, M or G, which are powers of 1000; a key may be given once, as an option or "
      "with `--set`.");
  text += "## Presets\n\n";
  std::vector<std::vector<std::string>> rows;
  for (const Preset& preset : all_presets()) rows.push_back({code(preset.name), cell(preset.summary)});
  text += table({"preset", "what it is"}, rows);
  const Config initial;
  std::string_view group;
  rows.clear();
  const std::vector<std::string> header = {"key", "default", "values", "meaning"};
  for (const Key& key : all_keys()) {
    if (key.group != group) {
      if (!rows.empty()) text += table(header, rows);
      rows.clear();
      group = key.group;
      text += fmt::format("## {}\n\n", capitalized(group));
    }
    rows.push_back({code(key.name), code(value_text(key.get(initial))), accepted(key), cell(key.help)});
  }
  return text + table(header, rows);
}

std::string environment_page() {
  return page_head("Environment, exit codes and files", "environment",
                   "Environment variables that `thimble` reads, the exit codes of its commands, and the "
                   "files it writes.") +
         "## Environment variables\n\n" + terms({"variable", "meaning"}, kEnvironment) +
         "The variables of `thimble golf` are listed in [golf.md](golf.md).\n\n## Exit codes\n\n" +
         terms({"code", "meaning"}, kExitCodes) + "## Files\n\n" + terms({"file", "content"}, kFiles);
}

std::string golf_page() {
  std::vector<std::vector<std::string>> rows;
  for (const GolfVariable& row : golf_variables()) {
    const auto shown = [](std::string_view value) {
      return value == kUnknown ? std::string("not read") : value.empty() ? "" : code(value);
    };
    rows.push_back({code(row.name), shown(row.mlx), shown(row.torch), row.key.empty() ? "" : code(row.key),
                    cell(row.meaning)});
  }
  return page_head(
             "Environment of thimble golf", "golf",
             "`thimble golf` is a drop-in replacement for parameter-golf's `train_gpt_mlx.py` and, with "
             "`--like torch`, `train_gpt.py`. It reads their environment variables. Each variable with a "
             "key sets that key of the [configuration](config.md).") +
         table({"variable", "default (mlx)", "default (torch)", "key", "meaning"}, rows);
}

struct ReferencePage {
  std::string_view name;
  std::string (*text)();
};
constexpr std::array kPages = {ReferencePage{"commands", commands_page}, ReferencePage{"config", config_page},
                               ReferencePage{"environment", environment_page},
                               ReferencePage{"golf", golf_page}};
constexpr std::array<std::string_view, kPages.size()> kPageNames = {kPages[0].name, kPages[1].name,
                                                                    kPages[2].name, kPages[3].name};

int run_man(const Arguments& arguments, Console& console) {
  const std::vector<std::string>& words = arguments.list("COMMAND");
  if (arguments.given("markdown")) {
    if (!words.empty()) throw UsageError("--markdown prints a whole page; remove COMMAND");
    console.print(reference_page(arguments.text("markdown")));
    return kExitDone;
  }
  const std::vector<Command> all = all_commands();
  if (words.empty()) {
    console.print(man_page(all));
    return kExitDone;
  }
  const CommandMatch match = find_command(all, words);
  std::vector<Command> chosen;
  for (const Command& command : all)
    if (match.command ? command.name == match.command->name : command.name.starts_with(words[0] + " "))
      chosen.push_back(command);
  if (match.words < words.size())
    throw UsageError(fmt::format("expected one command, found an extra word: '{}'", words[match.words]));
  console.print(man_page(chosen));
  return kExitDone;
}

}  // namespace

std::span<const std::string_view> reference_pages() {
  return kPageNames;
}

std::string reference_page(std::string_view page) {
  std::string text = std::ranges::find(kPages, page, &ReferencePage::name)->text();
  while (text.ends_with("\n\n")) text.pop_back();
  return text;
}

Command man_command() {
  return {.name = "man",
          .summary = "print the man page, or a page of the reference documentation",
          .arguments = {{.name = "COMMAND", .help = "one command (default: all)", .count = Count::any}},
          .options = {{.name = "markdown",
                       .help = "print this page of docs/reference instead",
                       .choices = {kPageNames.begin(), kPageNames.end()}}},
          .examples = {"thimble man | man -l -", "thimble man tokenizer train | man -l -",
                       "thimble man --markdown config"},
          .run = run_man};
}

}  // namespace thimble
