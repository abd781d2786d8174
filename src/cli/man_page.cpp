#include "cli/man_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/version.h"
#include "cli/commands.h"
#include "cli/console.h"
#include "cli/parse.h"
#include "cli/wording.h"

namespace thimble {

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
    Entry{"CUDA_VISIBLE_DEVICES", "which cards there are; of one alone every rank takes that one"},
    Entry{"THIMBLE_CUDA_PLUGIN, THIMBLE_MPI_PLUGIN, THIMBLE_NCCL_PLUGIN",
          "the file of a plugin, instead of looking for it"},
    Entry{"THIMBLE_NCCL", "1: sum between cards with NCCL even where there is one rank alone"},
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

// One code point of UTF-8 text; what is broken counts as Latin-1.
char32_t next_character(std::string_view& text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const std::size_t length = byte(0) < 0xC0 ? 1 : byte(0) < 0xE0 ? 2 : byte(0) < 0xF0 ? 3 : 4;
  char32_t character = length == 1 ? byte(0) : byte(0) & (0xFFu >> (length + 1));
  for (std::size_t i = 1; i < std::min(length, text.size()); ++i)
    character = character << 6 | (byte(i) & 0x3Fu);
  text.remove_prefix(std::min(length, text.size()));
  return character;
}

// Text as roff takes it: a minus that can be copied, quotes that stay straight, no line that is a request.
std::string escaped(std::string_view text) {
  static constexpr std::array kNames = {Entry{"\\", "\\e"},  Entry{"-", "\\-"},   Entry{"'", "\\(aq"},
                                        Entry{"`", "\\(ga"}, Entry{"^", "\\(ha"}, Entry{"~", "\\(ti"},
                                        Entry{"\"", "\\(dq"}};
  std::string out = text.starts_with('.') ? "\\&" : "";
  while (!text.empty()) {
    const std::string_view here = text.substr(0, 1);
    const char32_t character = next_character(text);
    const auto named =
        std::find_if(kNames.begin(), kNames.end(), [&](const Entry& e) { return e.first == here; });
    if (named != kNames.end())
      out += named->second;
    else if (character < 0x80)
      out += static_cast<char>(character);
    else
      out += fmt::format("\\[u{:04X}]", static_cast<unsigned>(character));
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
      "thimble trains GPT models on a CPU or a CUDA card, measures them in bits per byte, packs them into "
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
