// thimble(1), made from the table, and the command that prints it.
#pragma once

#include <span>
#include <string>

#include "cli/option.h"

namespace thimble {

// roff with the man macros, ASCII only: for man, groff and mandoc alike. Of all commands, or of some.
std::string man_page(std::span<const Command> commands);

Command man_command();

}  // namespace thimble
