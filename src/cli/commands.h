// The list of commands, and the lookup of a command by the words typed.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "cli/option.h"

namespace thimble {

struct Capture;

// To add a command, add a .cpp named after its first word and two lines in commands.cpp.
std::vector<Command> all_commands();

struct CommandMatch {
  const Command* command = nullptr;  // null: the words are a group, such as "tokenizer"
  std::size_t words = 0;             // number of words in its name
};

// Throws UsageError with the nearest name if there is no such command. `words` must not be empty.
CommandMatch find_command(std::span<const Command> commands, const std::vector<std::string>& words);

// Exit codes; kExitInterrupted is in base/signals.h.
inline constexpr int kExitDone = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;

// Runs a command inside another program. Throws what the command throws, and UsageError for
// commands that need a terminal or are a program of their own.
int run_inside(const std::vector<std::string>& words, Capture& capture);

// main() of the binary: runs the command and turns exceptions into messages and exit codes.
int run_thimble(int argc, char** argv);

}  // namespace thimble
