// The texts of --help and the documentation that are generated from the command table.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "cli/option.h"

namespace thimble {

inline constexpr std::size_t kHelpColumns = 100;

struct HelpStyle {
  bool bold = false;                   // print headings in bold (terminal escape sequences)
  bool all = false;                    // include advanced options (--help-all)
  std::size_t columns = kHelpColumns;  // width of the terminal, clamped to 40..kHelpColumns
};

std::string overview(std::span<const Command> commands, HelpStyle style = {});
std::string group_help(std::string_view group, std::span<const Command> commands, HelpStyle style = {});
std::string command_help(const Command& command, HelpStyle style = {});

// One paragraph, wrapped at kHelpColumns, with a line end.
std::string paragraph(std::string_view text);

// thimble(1) for the given commands, as ASCII roff with the man macros, for man, groff and mandoc.
std::string man_page(std::span<const Command> commands);

// Pages of docs/reference that are generated: "commands", "config", "environment", "golf".
std::span<const std::string_view> reference_pages();
std::string reference_page(std::string_view page);  // Markdown

}  // namespace thimble
