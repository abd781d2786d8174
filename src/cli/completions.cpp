#include "cli/completions.h"

#include <fmt/format.h>

#include <map>
#include <string>

#include "cli/commands.h"
#include "cli/console.h"
#include "cli/parse.h"

namespace thimble {

namespace {

// The script is one `case` over what stands before the cursor. A branch: this pattern offers these words;
// no words means file names.
std::string branch(const std::string& pattern, const std::string& words) {
  return fmt::format("    {}) words='{}';;\n", pattern, words);
}

// "thimble " offers the first word of every name, "thimble tokenizer " the second words of that group.
std::string name_branches(const std::vector<Command>& commands) {
  std::string first;
  std::map<std::string_view, std::string> second;
  for (const Command& command : commands) {
    const std::size_t space = command.name.find(' ');
    const std::string_view word = command.name.substr(0, space);
    if (space == std::string_view::npos || !second.contains(word)) first += fmt::format("{} ", word);
    if (space != std::string_view::npos) second[word] += fmt::format("{} ", command.name.substr(space + 1));
    for (std::string_view alias : command.aliases) first += fmt::format("{} ", alias);
  }
  std::string text = branch("' '", first + "--help --version");
  for (const auto& [word, words] : second) text += branch(fmt::format("'{} '", word), words + "--help");
  return text;
}

// Behind an option that takes a value: its choices, else file names. Elsewhere: everything the command knows.
std::string command_branches(const Command& command, std::string_view name) {
  std::string text, words;
  for (const Argument& argument : command.arguments)
    for (std::string_view choice : argument.choices) words += fmt::format("{} ", choice);
  for (const Option& option : options_of(command)) {
    words += fmt::format("--{} ", option.name);
    if (option.is_flag()) continue;
    std::string pattern = fmt::format("'{} '*'--{} '", name, option.name);
    if (option.letter) pattern += fmt::format("|'{} '*'-{} '", name, option.letter);
    text += branch(pattern, fmt::format("{}", fmt::join(option.choices, " ")));
  }
  return text + branch(fmt::format("'{} '*", name), words);
}

std::string bash_script(const std::vector<Command>& commands) {
  std::string branches = name_branches(commands);
  for (const Command& command : commands) {
    branches += command_branches(command, command.name);
    for (std::string_view alias : command.aliases) branches += command_branches(command, alias);
  }
  return R"sh(# bash completion for thimble; put this into ~/.bashrc: eval "$(thimble completions bash)"
_thimble() {
  local IFS=$' \t\n' words=''
  case "${COMP_WORDS[*]:1:COMP_CWORD-1} " in
)sh" + branches +
         R"sh(  esac
  COMPREPLY=($(compgen -W "$words" -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -o default -F _thimble thimble
)sh";
}

int run_completions(const Arguments&, Console& console) {
  console.print(bash_script(all_commands()));
  return 0;
}

}  // namespace

Command completions_command() {
  return {.name = "completions",
          .summary = "print the completion script of a shell",
          .arguments = {{.name = "SHELL", .help = "bash is the only one so far", .choices = {"bash"}}},
          .examples = {"eval \"$(thimble completions bash)\""},
          .run = run_completions};
}

}  // namespace thimble
