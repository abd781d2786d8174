// The list of commands, and finding the one that was typed.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "cli/option.h"

namespace thimble {

// One line per command in commands.cpp; each is declared and run in a file of its own.
std::vector<Command> all_commands();

struct CommandMatch {
  const Command* command = nullptr;  // null: the words name a group ("tokenizer") and nothing in it
  std::size_t words = 0;             // how many words its name took
};

// Throws UsageError with the nearest name if there is no such command. `words` is not empty.
CommandMatch find_command(std::span<const Command> commands, const std::vector<std::string>& words);

}  // namespace thimble
