// What somebody types into a chat: messages of one line or many, and commands.
//
//   first line \            ends with a backslash: goes on
//   """ or """text          begins a block that a line ending with """ closes
//   /save FILE              a command
//   //etc                   a message that begins with a slash
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "cli/line_editor.h"

namespace thimble {

// Lines until the message is whole. An unfinished one at the end of the file is taken as it is.
Line read_message(LineEditor& lines, std::string_view prompt);

struct ChatCommand {
  std::string name;      // "save"
  std::string argument;  // what follows it, blanks around it taken away
};

// Nothing: it is a message.
std::optional<ChatCommand> parse_chat_command(std::string_view text);
// A message without the slash that only said that it is one.
std::string_view unescaped_message(std::string_view text);

// Text that a model wrote, for a terminal: control characters but line ends and tabs become U+FFFD, so that nobody is
// sent escape sequences. `text` holds whole characters.
std::string terminal_safe(std::string_view text);

}  // namespace thimble
