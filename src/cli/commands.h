// The list of commands, and finding the one that was typed.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "cli/option.h"

namespace thimble {

// A declaration and a line per command in commands.cpp; its .cpp is named after its first word.
std::vector<Command> all_commands();

struct CommandMatch {
  const Command* command = nullptr;  // null: the words name a group ("tokenizer") and nothing in it
  std::size_t words = 0;             // how many words its name took
};

// Throws UsageError with the nearest name if there is no such command. `words` is not empty.
CommandMatch find_command(std::span<const Command> commands, const std::vector<std::string>& words);

// Exit codes; kExitInterrupted is in base/signals.h.
inline constexpr int kExitDone = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;

// The binary: finds the command, runs it, turns what it throws into messages and exit codes.
int run_thimble(int argc, char** argv);

}  // namespace thimble
