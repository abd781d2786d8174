// The texts of --help, made from the table.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "cli/option.h"

namespace thimble {

// `bold`: headings stand out (a terminal). Lines are at most 100 columns.
std::string overview(std::span<const Command> commands, bool bold);
std::string group_help(std::string_view group, std::span<const Command> commands, bool bold);
std::string command_help(const Command& command, bool bold);

}  // namespace thimble
