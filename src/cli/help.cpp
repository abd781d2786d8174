#include "cli/help.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/machine.h"
#include "base/table.h"
#include "base/text.h"
#include "base/utf8.h"
#include "cli/commands.h"
#include "cli/console.h"
#include "cli/option.h"
#include "cli/parse.h"

namespace thimble {

namespace {

constexpr std::size_t kWidestLeft = 32;  // a longer left side gets a line of its own
constexpr std::size_t kNarrow = 72;      // below, every left side does
constexpr std::size_t kLeastColumns = 40;

using HelpRows = std::vector<std::pair<std::string, std::string>>;

std::string heading(std::string_view text, bool bold) {
  return bold ? fmt::format("\x1b[1m{}\x1b[0m\n", text) : fmt::format("{}\n", text);
}

// Where lines end: as wide as the terminal, but no wider than one likes to read.
std::size_t line_end(HelpStyle style) {
  return std::clamp(style.columns, kLeastColumns, kHelpColumns);
}

// Where the word ends that starts at `begin`; in a command line, what is quoted is one word.
std::size_t word_end(std::string_view text, std::size_t begin, bool command_line) {
  char quote = 0;
  for (std::size_t at = begin; at < text.size(); ++at) {
    if (text[at] == ' ' && !quote) return at;
    if (!command_line || (text[at] != '"' && text[at] != '\'')) continue;
    if (!quote || quote == text[at]) quote = quote ? 0 : text[at];
  }
  return text.size();
}

// Words of `text`, starting at column `column`, broken before `last`; later lines begin at `indent`. Where a command line
// is broken, a backslash says so.
std::string wrapped(std::string_view text, std::size_t column, std::size_t indent, std::size_t last,
                    bool command_line = false) {
  const std::string_view glue = command_line ? " \\" : "";
  std::string out;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = word_end(text, begin, command_line);
    const std::string_view word = text.substr(begin, end - begin);
    const std::size_t room = end == text.size() ? last : last - glue.size();
    if (begin > 0 && column + 1 + display_width(word) > room) {
      out += fmt::format("{}\n{:{}}", glue, "", indent);
      column = indent;
    } else if (begin > 0) {
      out += ' ';
      ++column;
    }
    out += word;
    column += display_width(word);
    begin = end + 1;
  }
  return out + "\n";
}

// Two columns, the right one wrapped.
std::string aligned(const HelpRows& rows, HelpStyle style) {
  const bool narrow = line_end(style) < kNarrow;
  std::size_t width = narrow ? 4 : 0;
  for (const auto& [left, right] : rows)
    if (!narrow && display_width(left) <= kWidestLeft) width = std::max(width, display_width(left));
  const std::size_t column = 2 + width + 2;

  std::string out;
  for (const auto& [left, right] : rows) {
    out += "  " + left;
    const std::size_t used = 2 + display_width(left);
    out += used + 2 <= column ? std::string(column - used, ' ') : "\n" + std::string(column, ' ');
    out += wrapped(right, column, column, line_end(style));
  }
  return out;
}

// How it is typed, and what it does. Choices that are wider than the page go with the latter.
std::pair<std::string, std::string> row_of(const Option& option, HelpStyle style) {
  const std::string left =
      fmt::format("{}--{}{}", option.letter ? fmt::format("-{}, ", option.letter) : "    ", option.name,
                  option.is_flag() ? "" : " ");
  const std::string value = value_of(option), right = described(option);
  if (2 + display_width(left + value) <= line_end(style)) return {left + value, right};
  return {left + "NAME", fmt::format("{}; NAME is one of {}", right, joined(option.choices, ", "))};
}

}  // namespace

std::string overview(std::span<const Command> commands, HelpStyle style) {
  HelpRows rows;
  for (const Command& command : commands) rows.emplace_back(command.name, command.summary);
  constexpr std::string_view kTitle =
      "thimble: train a small language model, squeeze it into a thimble, talk to it, ship it";
  return wrapped(kTitle, 0, 0, line_end(style)) + "\n" + heading("usage", style.bold) +
         "  thimble COMMAND [arguments] [options]\n\n" + heading("commands", style.bold) +
         aligned(rows, style) + "\n" + heading("options", style.bold) +
         aligned({{"--help", "show this text; after a command: everything about it"},
                  {"--version", "print the version"}},
                 style);
}

std::string group_help(std::string_view group, std::span<const Command> commands, HelpStyle style) {
  HelpRows rows;
  for (const Command& command : commands)
    if (command.name.starts_with(fmt::format("{} ", group))) rows.emplace_back(command.name, command.summary);
  const std::string usage = fmt::format("thimble {} SUBCOMMAND [arguments] [options]", group);
  return heading("usage", style.bold) + "  " + wrapped(usage, 2, 6, line_end(style)) + "\n" +
         heading("commands", style.bold) + aligned(rows, style);
}

std::string command_help(const Command& command, HelpStyle style) {
  const std::size_t end = line_end(style);
  std::string text = wrapped(fmt::format("{}: {}", command.name, command.summary), 0, 2, end) + "\n";
  text += heading("usage", style.bold) + "  " + wrapped(usage_of(command), 2, 6, end);
  if (!command.aliases.empty())
    text += fmt::format("  (also as: thimble {})\n", joined(command.aliases, ", thimble "));

  HelpRows rows;
  for (const Argument& argument : command.arguments) rows.emplace_back(usage_of(argument), argument.help);
  if (!rows.empty()) text += "\n" + heading("arguments", style.bold) + aligned(rows, style);

  rows.clear();
  for (const Option& option : options_of(command)) rows.push_back(row_of(option, style));
  text += "\n" + heading("options", style.bold) + aligned(rows, style);

  if (!command.examples.empty()) text += "\n" + heading("examples", style.bold);
  for (std::string_view example : command.examples) text += "  " + wrapped(example, 2, 6, end, true);
  return text;
}

namespace {

constexpr std::string_view kDate =
    "2026-11-15";  // of this version's page: the day of a build would be another each time

using Entry = std::pair<std::string_view, std::string_view>;

constexpr std::array kExitCodes = {
    Entry{"0", "done; also when training ended early by its clock or for want of progress"},
    Entry{"1",
          "failed: what was expected, what was found and a hint are on stderr; also a run that diverged"},
    Entry{"2", "the command line is wrong"},
    Entry{"130", "interrupted (Ctrl-C); what was trained is saved first"},
};

constexpr std::array kEnvironment = {
    Entry{"COLUMNS",
          "how wide pages and tables may be, where the terminal does not say or should not be asked"},
    Entry{"NO_COLOR", "set to anything: no colours"},
    Entry{"TERM", "dumb: no colours and no line editing"},
    Entry{"OMP_NUM_THREADS", "how many CPU threads compute; --threads goes before it"},
    Entry{"OMP_WAIT_POLICY, GOMP_SPINCOUNT",
          "how long idle threads spin; unset, thimble chooses a short time"},
    Entry{"THIMBLE_API_KEY", "a key that clients of thimble serve must send, as --api-key"},
    Entry{"CUDA_VISIBLE_DEVICES", "which GPUs there are; of one alone every rank takes that one"},
    Entry{"THIMBLE_CUDA_PLUGIN, THIMBLE_MPI_PLUGIN, THIMBLE_NCCL_PLUGIN",
          "the file of a plugin, instead of looking for it"},
    Entry{"THIMBLE_NCCL", "1: sum between GPUs with NCCL even where there is one rank alone"},
    Entry{"THIMBLE_CPU",
          "the highest CPU level to use: scalar, avx2, avx512, avx512_bf16 or amx; unset, what the CPU has"},
    Entry{"XDG_STATE_HOME, HOME", "where the history of thimble chat is kept"},
};

constexpr std::array kFiles = {
    Entry{"runs/PRESET-N",
          "a run where -o names no other: checkpoints/*.safetensors, best.safetensors, last.safetensors, "
          "config.toml (can be run again), the tokenizer, metrics.jsonl, run.json"},
    Entry{"*.thimble", "a packed model: weights, config and tokenizer in one file"},
    Entry{"~/.local/state/thimble", "the history of thimble chat"},
    Entry{"libthimble_cuda.so", "the CUDA plugin, beside the binary or in its ../lib; opened on first use"},
};

// Text as roff takes it: a minus that can be copied, quotes that stay straight, no line that is a request.
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

// A list of terms, each with what it means.
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
    text += fmt::format("(also as {})\n", bold(fmt::format("thimble {}", alias)));
  for (const Argument& argument : command.arguments)
    text += item(fmt::format("\\fI{}\\fR", escaped(usage_of(argument))), argument.help);
  for (const Option& option : options_of(command)) text += item(term_of(option), described(option));
  if (!command.examples.empty()) text += ".PP\nExamples:\n.PP\n.nf\n.RS 4\n";
  for (std::string_view example : command.examples) text += escaped(example) + "\n";
  if (!command.examples.empty()) text += ".RE\n.fi\n";
  return text;
}

int run_man(const Arguments& arguments, Console& console) {
  const std::vector<Command> all = all_commands();
  const std::vector<std::string>& words = arguments.list("COMMAND");
  if (words.empty()) {
    console.print(man_page(all));
    return 0;
  }
  const CommandMatch match = find_command(all, words);
  std::vector<Command> chosen;
  for (const Command& command : all)
    if (match.command ? command.name == match.command->name : command.name.starts_with(words[0] + " "))
      chosen.push_back(command);
  if (match.words < words.size())
    throw UsageError(
        fmt::format("expected the name of one command, found one more word: '{}'", words[match.words]));
  console.print(man_page(chosen));
  return 0;
}

}  // namespace

std::string man_page(std::span<const Command> commands) {
  std::string text = fmt::format(".TH THIMBLE 1 \"{}\" \"thimble {}\" \"User Commands\"\n", kDate, version());
  text +=
      ".SH NAME\nthimble \\- train a small language model, squeeze it, talk to it, ship it\n"
      ".SH SYNOPSIS\n.B thimble\n\\fICOMMAND\\fR [\\fIarguments\\fR] [\\fIoptions\\fR]\n.br\n"
      ".B thimble\n\\fICOMMAND\\fR \\fB\\-\\-help\\fR | \\fB\\-\\-help\\fR | \\fB\\-\\-version\\fR\n"
      ".SH DESCRIPTION\n";
  text += escaped(
      "thimble trains GPT models on a CPU or a CUDA GPU, measures them in bits per byte, packs them into "
      "small files, "
      "generates, chats and serves, and writes and reads GGUF and Hugging Face folders.");
  text += "\n.PP\n" +
          escaped(
              "A MODEL is a run folder (its best checkpoint, else its last), a checkpoint, a .thimble "
              "artifact, a "
              "GGUF file or a Hugging Face folder. Results go to stdout, progress and messages to stderr. "
              "Outputs "
              "that exist are overwritten with --force only.") +
          "\n.SH COMMANDS\n";
  for (const Command& command : commands) text += command_section(command);
  text += ".SH EXIT STATUS\n" + items(kExitCodes);
  text += ".SH ENVIRONMENT\n" + items(kEnvironment);
  text += ".PP\nThe variables of the golf scripts: " + bold("thimble golf --list-env") + ".\n";
  text += ".SH FILES\n" + items(kFiles);
  return text;
}

Command man_command() {
  return {.name = "man",
          .summary = "print the man page: everything that --help says, as roff",
          .arguments = {{.name = "COMMAND", .help = "only this one (default: all)", .count = Count::any}},
          .examples = {"thimble man | man -l -", "thimble man tokenizer train | man -l -"},
          .run = run_man};
}

}  // namespace thimble
