// The texts of --help, made from the table.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "cli/option.h"

namespace thimble {

inline constexpr std::size_t kHelpColumns = 100;

struct HelpStyle {
  bool bold = false;  // headings stand out (a terminal)
  std::size_t columns =
      kHelpColumns;  // of the terminal: lines are broken before it, between 40 and kHelpColumns
};

std::string overview(std::span<const Command> commands, HelpStyle style = {});
std::string group_help(std::string_view group, std::span<const Command> commands, HelpStyle style = {});
std::string command_help(const Command& command, HelpStyle style = {});

// thimble(1), made from the table: roff with the man macros, ASCII only: for man, groff and mandoc alike. Of all commands, or of some.
std::string man_page(std::span<const Command> commands);

}  // namespace thimble
