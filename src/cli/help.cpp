#include "cli/help.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "base/table.h"
#include "base/text.h"
#include "cli/option.h"

namespace thimble {

namespace {

constexpr std::size_t kWidestLeft = 32;  // a longer left side is put on a separate line
constexpr std::size_t kNarrow = 72;      // narrower pages put every left side on a separate line
constexpr std::size_t kLeastColumns = 40;

using HelpRows = std::vector<std::pair<std::string, std::string>>;

std::string heading(std::string_view text, bool bold) {
  return bold ? fmt::format("\x1b[1m{}\x1b[0m\n", text) : fmt::format("{}\n", text);
}

std::size_t line_end(HelpStyle style) {
  return std::clamp(style.columns, kLeastColumns, kHelpColumns);
}

// Index of the end of the word that starts at `begin`. A quoted part of a command line is one word.
std::size_t word_end(std::string_view text, std::size_t begin, bool command_line) {
  char quote = 0;
  for (std::size_t at = begin; at < text.size(); ++at) {
    if (text[at] == ' ' && !quote) return at;
    if (!command_line || (text[at] != '"' && text[at] != '\'')) continue;
    if (!quote || quote == text[at]) quote = quote ? 0 : text[at];
  }
  return text.size();
}

// Wraps `text`, which starts at column `column`, before column `last`; further lines are indented
// by `indent`. A command line is continued with a backslash.
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

// Two columns; the right one is wrapped.
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

// The two columns of an option. Choices that are too wide for the left column are listed in the
// right one.
std::pair<std::string, std::string> row_of(const Option& option, HelpStyle style) {
  const std::string left =
      fmt::format("{}--{}{}", option.letter ? fmt::format("-{}, ", option.letter) : "    ", option.name,
                  option.is_flag() ? "" : " ");
  const std::string value = value_of(option), right = described(option);
  if (2 + display_width(left + value) <= line_end(style)) return {left + value, right};
  return {left + "NAME", fmt::format("{}; NAME is one of {}", right, joined(option.choices, ", "))};
}

}  // namespace

namespace {

bool is_grouped(const Command& command) {
  return std::ranges::any_of(command.options, [](const Option& option) { return !option.group.empty(); });
}

// The options of a command by heading, in order of first appearance; common options come last.
std::vector<std::pair<std::string_view, HelpRows>> option_groups(const Command& command, HelpStyle style) {
  const std::string_view without_group = is_grouped(command) ? "general" : "options";
  std::vector<std::pair<std::string_view, HelpRows>> groups;
  for (const Option& option : options_of(command)) {
    if (option.advanced && !style.all) continue;
    const std::string_view group = option.group.empty() ? without_group : option.group;
    auto found = std::ranges::find(groups, group, &std::pair<std::string_view, HelpRows>::first);
    if (found == groups.end()) found = groups.insert(found, {group, {}});
    found->second.push_back(row_of(option, style));
  }
  return groups;
}

}  // namespace

std::string paragraph(std::string_view text) {
  return wrapped(text, 0, 0, kHelpColumns);
}

std::string overview(std::span<const Command> commands, HelpStyle style) {
  constexpr std::string_view kTitle =
      "thimble: train small GPT language models, measure, pack, serve and export them";
  std::string text = wrapped(kTitle, 0, 0, line_end(style)) + "\n" + heading("usage", style.bold) +
                     "  thimble COMMAND [arguments] [options]\n";
  std::size_t width = 0;  // the same in all groups
  for (const Command& command : commands) width = std::max(width, display_width(command.name));
  std::vector<std::string_view> tasks;
  for (const Command& command : commands)
    if (std::ranges::find(tasks, command.task) == tasks.end()) tasks.push_back(command.task);
  for (const std::string_view task : tasks) {
    HelpRows rows;
    for (const Command& command : commands)
      if (command.task == task) rows.emplace_back(fmt::format("{:{}}", command.name, width), command.summary);
    text += "\n" + heading(task.empty() ? "commands" : task, style.bold) + aligned(rows, style);
  }
  return text + "\n" + heading("options", style.bold) +
         aligned({{"--help", "show this help; `thimble COMMAND --help` describes one command"},
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
    text += fmt::format("  (alias: thimble {})\n", joined(command.aliases, ", thimble "));

  HelpRows rows;
  for (const Argument& argument : command.arguments) rows.emplace_back(usage_of(argument), argument.help);
  if (!rows.empty()) text += "\n" + heading("arguments", style.bold) + aligned(rows, style);

  for (const auto& [group, options] : option_groups(command, style))
    text += "\n" + heading(group, style.bold) + aligned(options, style);

  const auto hidden = std::ranges::count_if(command.options, &Option::advanced);
  if (hidden > 0 && !style.all)
    text += "\n" +
            wrapped(fmt::format("{} more options: thimble {} --help-all", hidden, command.name), 0, 0, end);
  if (!command.notes.empty()) text += "\n" + wrapped(command.notes, 0, 0, end);

  if (!command.examples.empty()) text += "\n" + heading("examples", style.bold);
  for (std::string_view example : command.examples) text += "  " + wrapped(example, 2, 6, end, true);
  return text;
}

}  // namespace thimble
