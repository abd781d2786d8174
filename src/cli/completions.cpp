#include "cli/option.h"

#include <fmt/format.h>

#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/text.h"
#include "cli/commands.h"
#include "cli/console.h"
#include "cli/parse.h"

namespace thimble {

namespace {

// A word that can be completed, and its description.
struct Offer {
  std::string word;
  std::string_view meaning;
};
using Offers = std::vector<Offer>;

// Group "" has the first words of all names; group "tokenizer" has the second words of "tokenizer
// train" and so on.
std::map<std::string, Offers> names_by_group(std::span<const Command> commands) {
  std::map<std::string, Offers> groups;
  for (const Command& command : commands) {
    const std::size_t space = command.name.find(' ');
    const std::string word(command.name.substr(0, space));
    if (space == command.name.npos) {
      Offers& first = groups[""];
      std::erase_if(first,
                    [&](const Offer& offer) { return offer.word == word; });  // "bench" is a group, too
      first.push_back({word, command.summary});
    } else {
      if (!groups.contains(word)) groups[""].push_back({word, "group of commands"});
      groups[word].push_back({std::string(command.name.substr(space + 1)), command.summary});
    }
    for (std::string_view alias : command.aliases)
      groups[""].push_back({std::string(alias), command.summary});
  }
  groups[""].push_back({"--version", "print the version"});
  for (auto& [group, offers] : groups) offers.push_back({"--help", "show help"});
  return groups;
}

std::vector<std::string_view> names_of(const Command& command) {
  std::vector<std::string_view> names = {command.name};
  names.insert(names.end(), command.aliases.begin(), command.aliases.end());
  return names;
}

Offers arguments_of(const Command& command) {
  Offers offers;
  for (const Argument& argument : command.arguments)
    for (std::string_view choice : argument.choices) offers.push_back({std::string(choice), argument.help});
  return offers;
}

Offers flags_of(const Command& command) {
  Offers offers;
  for (const Option& option : options_of(command))
    offers.push_back({fmt::format("--{}", option.name), option.help});
  return offers;
}

Offers choices_of(const Option& option) {
  Offers offers;
  for (std::string_view choice : option.choices) offers.push_back({std::string(choice), ""});
  return offers;
}

std::string in_quotes(std::string_view text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

// For bash and zsh: one `case` over the words before the cursor. A branch without offers completes
// file names.
using Branch = std::string (*)(const std::string& pattern, const Offers& offers);

std::string branches(std::span<const Command> commands, Branch branch) {
  std::string text;
  for (const auto& [group, offers] : names_by_group(commands))
    text += branch(fmt::format("'{} '", group), offers);
  for (const Command& command : commands)
    for (std::string_view name : names_of(command)) {
      for (const Option& option : options_of(command)) {
        if (option.is_flag()) continue;
        std::string pattern = fmt::format("'{} '*'--{} '", name, option.name);
        if (option.letter) pattern += fmt::format("|'{} '*'-{} '", name, option.letter);
        text += branch(pattern, choices_of(option));
      }
      Offers here = arguments_of(command);
      for (Offer& flag : flags_of(command)) here.push_back(std::move(flag));
      text += branch(fmt::format("'{} '*", name), here);
    }
  return text;
}

std::string bash_branch(const std::string& pattern, const Offers& offers) {
  std::string words;
  for (const Offer& offer : offers) words += (words.empty() ? "" : " ") + offer.word;
  return fmt::format("    {}) words={};;\n", pattern, in_quotes(words));
}

std::string bash_script(std::span<const Command> commands) {
  return R"sh(# bash completion for thimble; put this into ~/.bashrc: eval "$(thimble completions bash)"
_thimble() {
  local IFS=$' \t\n' words=''
  case "${COMP_WORDS[*]:1:COMP_CWORD-1} " in
)sh" + branches(commands, bash_branch) +
         R"sh(  esac
  COMPREPLY=($(compgen -W "$words" -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -o default -F _thimble thimble
)sh";
}

// _describe expects "word:meaning".
std::string zsh_branch(const std::string& pattern, const Offers& offers) {
  std::string text = fmt::format("    {}) offered=(", pattern);
  for (const Offer& offer : offers) {
    std::string word;
    for (const char c : offer.word) word += c == ':' ? std::string("\\:") : std::string(1, c);
    text += "\n      " + in_quotes(offer.meaning.empty() ? word : fmt::format("{}:{}", word, offer.meaning));
  }
  return text + ");;\n";
}

std::string zsh_script(std::span<const Command> commands) {
  return R"sh(#compdef thimble
# zsh completion for thimble; put this into ~/.zshrc after compinit: eval "$(thimble completions zsh)"
_thimble() {
  local -a offered
  case "${(j: :)words[2,CURRENT-1]} " in
)sh" + branches(commands, zsh_branch) +
         R"sh(  esac
  # Flags after a dash, else words and file names.
  local -a plain=(${offered:#--*})
  if [[ ${words[CURRENT]} == -* ]]; then
    _describe -o 'option' offered
  elif (( $#plain )); then
    _describe 'word' plain
  else
    _files
  fi
}
if [[ ${funcstack[1]} == _thimble ]]; then _thimble "$@"; else compdef _thimble thimble; fi
)sh";
}

std::string fish_line(std::string_view condition, std::string_view rest, std::string_view meaning) {
  std::string text = fmt::format("complete -c thimble -n {} {}", in_quotes(condition), rest);
  if (!meaning.empty()) text += fmt::format(" -d {}", in_quotes(meaning));
  return text + "\n";
}

// In fish, -x takes one of the given words, -r any value or file.
std::string fish_option(const Option& option) {
  std::string text = fmt::format("-l {}", option.name);
  if (option.letter) text += fmt::format(" -s {}", option.letter);
  if (!option.choices.empty())
    return fmt::format("{} -x -a {}", text, in_quotes(joined(option.choices, " ")));
  return option.is_flag() ? text : text + " -r";
}

std::string fish_script(std::span<const Command> commands) {
  std::string text =
      R"sh(# fish completion for thimble: thimble completions fish > ~/.config/fish/completions/thimble.fish
function __thimble_before
    set -l words (commandline -opc)
    test "$words[2..]" = "$argv"
end
function __thimble_in
    set -l words (commandline -opc)
    string match -q -- "$argv *" "$words[2..] "
end
complete -c thimble -e
)sh";
  for (const auto& [group, offers] : names_by_group(commands))
    for (const Offer& offer : offers)
      text += fish_line(fmt::format("__thimble_before {}", group.empty() ? "''" : group),
                        "-f -a " + in_quotes(offer.word), offer.meaning);
  for (const Command& command : commands)
    for (std::string_view name : names_of(command)) {
      const std::string here = fmt::format("__thimble_in {}", name);
      for (const Offer& offer : arguments_of(command))
        text += fish_line(here, "-f -a " + in_quotes(offer.word), offer.meaning);
      for (const Option& option : options_of(command))
        text += fish_line(here, fish_option(option), option.help);
    }
  return text;
}

int run_completions(const Arguments& arguments, Console& console) {
  const std::vector<Command> commands = all_commands();
  const std::string& shell = arguments.text("SHELL");
  console.print(shell == "bash"  ? bash_script(commands)
                : shell == "zsh" ? zsh_script(commands)
                                 : fish_script(commands));
  return 0;
}

}  // namespace

Command completions_command() {
  return {
      .name = "completions",
      .summary = "print the completion script of a shell",
      .arguments = {{.name = "SHELL", .help = "shell to complete in", .choices = {"bash", "zsh", "fish"}}},
      .examples = {"eval \"$(thimble completions bash)\"", "thimble completions fish | source"},
      .run = run_completions};
}

}  // namespace thimble
