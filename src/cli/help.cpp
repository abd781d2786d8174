#include "cli/help.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/table.h"

namespace thimble {

namespace {

constexpr std::size_t kColumns = 100;
constexpr std::size_t kWidestLeft = 32;  // a longer left side gets a line of its own

using Rows = std::vector<std::pair<std::string, std::string>>;

std::string heading(std::string_view text, bool bold) {
  return bold ? fmt::format("\x1b[1m{}\x1b[0m\n", text) : fmt::format("{}\n", text);
}

// Words of `text`, starting at column `column`, broken before kColumns; later lines begin at `indent`.
std::string wrapped(std::string_view text, std::size_t column, std::size_t indent) {
  std::string out;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(' ', begin), text.size());
    const std::string_view word = text.substr(begin, end - begin);
    if (begin > 0 && column + 1 + display_width(word) > kColumns) {
      out += "\n" + std::string(indent, ' ');
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
std::string aligned(const Rows& rows) {
  std::size_t width = 0;
  for (const auto& [left, right] : rows)
    if (display_width(left) <= kWidestLeft) width = std::max(width, display_width(left));
  const std::size_t column = 2 + width + 2;

  std::string out;
  for (const auto& [left, right] : rows) {
    out += "  " + left;
    const std::size_t used = 2 + display_width(left);
    out += used + 2 <= column ? std::string(column - used, ' ') : "\n" + std::string(column, ' ');
    out += wrapped(right, column, column);
  }
  return out;
}

std::string value_of(const Option& option) {
  if (option.choices.empty()) return std::string(option.value);
  return fmt::format("{}", fmt::join(option.choices, "|"));
}

std::string spelled(const Option& option) {
  const std::string letter = option.letter ? fmt::format("-{}, ", option.letter) : "    ";
  return fmt::format("{}--{}{}{}", letter, option.name, option.is_flag() ? "" : " ", value_of(option));
}

std::string described(const Option& option) {
  std::string text(option.help);
  if (option.required) text += " (required)";
  if (option.repeated) text += " (may be repeated)";
  if (!option.initial.empty()) text += fmt::format(" (default: {})", option.initial);
  return text;
}

std::string usage_of(const Argument& argument) {
  std::string name = argument.choices.empty() ? std::string(argument.name)
                                              : fmt::format("{}", fmt::join(argument.choices, "|"));
  switch (argument.count) {
    case Count::one:
      return name;
    case Count::optional:
      return fmt::format("[{}]", name);
    case Count::many:
      return fmt::format("{}...", name);
    case Count::any:
      return fmt::format("[{}]...", name);
  }
  return name;
}

std::string usage(const Command& command) {
  std::string line = fmt::format("thimble {}", command.name);
  for (const Argument& argument : command.arguments) line += " " + usage_of(argument);
  for (const Option& option : command.options)
    if (option.required)
      line += option.letter ? fmt::format(" -{} {}", option.letter, value_of(option))
                            : fmt::format(" --{} {}", option.name, value_of(option));
  return line + " [options]";
}

}  // namespace

std::string overview(std::span<const Command> commands, bool bold) {
  Rows rows;
  for (const Command& command : commands) rows.emplace_back(command.name, command.summary);
  return "thimble: train a small language model, squeeze it into a thimble, talk to it, ship it\n\n" +
         heading("usage", bold) + "  thimble COMMAND [arguments] [options]\n\n" + heading("commands", bold) +
         aligned(rows) + "\n" + heading("options", bold) +
         aligned({{"--help", "show this text; after a command: everything about it"},
                  {"--version", "print the version"}});
}

std::string group_help(std::string_view group, std::span<const Command> commands, bool bold) {
  Rows rows;
  for (const Command& command : commands)
    if (command.name.starts_with(fmt::format("{} ", group))) rows.emplace_back(command.name, command.summary);
  return heading("usage", bold) + fmt::format("  thimble {} SUBCOMMAND [arguments] [options]\n\n", group) +
         heading("commands", bold) + aligned(rows);
}

std::string command_help(const Command& command, bool bold) {
  std::string text = fmt::format("{}: {}\n\n", command.name, command.summary);
  text += heading("usage", bold) + "  " + usage(command) + "\n";
  if (!command.aliases.empty())
    text += fmt::format("  (also as: thimble {})\n", fmt::join(command.aliases, ", thimble "));

  Rows rows;
  for (const Argument& argument : command.arguments) rows.emplace_back(usage_of(argument), argument.help);
  if (!rows.empty()) text += "\n" + heading("arguments", bold) + aligned(rows);

  rows.clear();
  for (const Option& option : options_of(command)) rows.emplace_back(spelled(option), described(option));
  text += "\n" + heading("options", bold) + aligned(rows);

  if (!command.examples.empty()) text += "\n" + heading("examples", bold);
  for (std::string_view example : command.examples) text += fmt::format("  {}\n", example);
  return text;
}

}  // namespace thimble
