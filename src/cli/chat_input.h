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

struct Message {
  LineEnd end = LineEnd::closed;
  std::string text = {};
  bool quoted = false;  // stood between """: neither a command nor to be unescaped

  std::string as_typed() const { return quoted ? "\"\"\"" + text + "\"\"\"" : text; }
};

// Lines until the message is whole. An unfinished one at the end of the file is taken as it is.
Message read_message(LineEditor& lines, std::string_view prompt);

struct ChatCommand {
  std::string name;      // "save"
  std::string argument;  // what follows it, blanks around it taken away
};

// Nothing: it is a message.
std::optional<ChatCommand> parse_chat_command(std::string_view text);
// A message without the slash that only said that it is one. Many lines are no command and need no such slash.
std::string_view unescaped_message(std::string_view text);

}  // namespace thimble
