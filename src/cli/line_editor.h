// Lines that somebody types: with libedit on a terminal, where it was there at build time; else as they come.
//
//   auto lines = make_line_editor({.history = state_folder() / "chat_history"}, &interrupt);
//   while (const auto line = lines->read("> "); line.end == LineEnd::line) ...
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/signals.h"

namespace thimble {

enum class LineEnd {
  line,         // here is one
  interrupted,  // Ctrl-C: the line is void
  closed        // Ctrl-D, or the end of the file
};

struct Line {
  LineEnd end = LineEnd::closed;
  std::string text = {};  // without its end; pasted text may hold more
};

class LineEditor {
 public:
  virtual ~LineEditor() = default;

  virtual Line read(std::string_view prompt) = 0;
  virtual void remember(std::string_view) {}  // for the arrow keys, now and next time
};

// From standard input, whatever it is. `interrupt` outlives it: a read that is interrupted is over once it says
// asked().
std::unique_ptr<LineEditor> make_plain_lines(bool shows_prompt, const Interrupt& interrupt);

struct EditorOptions {
  std::filesystem::path history = {};  // empty: forgotten at the end
  bool colour = false;                 // of the prompt
};

// For a terminal on standard input and output.
std::unique_ptr<LineEditor> make_line_editor(const EditorOptions& options, const Interrupt& interrupt);

// Line editing by libedit: keys, history, pasted text. Compiled where libedit is there (CMakeLists.txt).
// nullptr: libedit cannot use this terminal.
std::unique_ptr<LineEditor> make_libedit_lines(const EditorOptions& options, const Interrupt& interrupt);

// What was typed before, in a file: one JSON string per line, oldest first.
// $XDG_STATE_HOME/thimble, else ~/.local/state/thimble. Empty: nobody is at home.
std::filesystem::path state_folder();

// The newest `most` of them; a file that holds more is cut to them. A comfort: lines that cannot be read are left out,
// and without a file there are none.
std::vector<std::string> read_line_history(const std::filesystem::path& path, std::size_t most);

// One line more, in one write: several chats at once keep each other's. Folder and file are their owner's alone. What
// cannot be written is not kept.
void append_line_history(const std::filesystem::path& path, std::string_view line);

// What somebody types into a chat: messages of one line or many, and commands.
//
//   first line \            ends with a backslash: goes on
//   """ or """text          begins a block that a line ending with """ closes
//   /save FILE              a command
//   //etc                   a message that begins with a slash
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
