// Reads lines from the user. On a terminal it uses libedit, if that was found at build time.
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
  line,
  interrupted,  // Ctrl-C: discard the line
  closed        // Ctrl-D, or the end of the file
};

struct Line {
  LineEnd end = LineEnd::closed;
  std::string text = {};  // without the final newline; pasted text may contain more lines
};

class LineEditor {
 public:
  virtual ~LineEditor() = default;

  virtual Line read(std::string_view prompt) = 0;
  virtual void remember(std::string_view) {}  // add to the history
};

// Reads standard input. A read interrupted by a signal ends if interrupt.requested() is true,
// otherwise it is retried. `interrupt` must outlive the object.
std::unique_ptr<LineEditor> make_plain_lines(bool shows_prompt, const Interrupt& interrupt);

struct EditorOptions {
  std::filesystem::path history = {};  // empty: not saved
  bool colour = false;                 // print the prompt in color
};

// For a terminal on standard input and output.
std::unique_ptr<LineEditor> make_line_editor(const EditorOptions& options, const Interrupt& interrupt);

// Line editing with libedit: keys, history, pasted text. Compiled if libedit was found
// (CMakeLists.txt). Returns nullptr if libedit cannot use this terminal.
std::unique_ptr<LineEditor> make_libedit_lines(const EditorOptions& options, const Interrupt& interrupt);

// $XDG_STATE_HOME/thimble, or ~/.local/state/thimble; empty if neither variable is set. The history
// is a file of JSON strings, one per line, oldest first.
std::filesystem::path state_folder();

// Returns the newest `most` lines and truncates a longer file to them. Skips lines that cannot be
// read; returns none if the file cannot be read.
std::vector<std::string> read_line_history(const std::filesystem::path& path, std::size_t most);

// Appends a line in one write, so that concurrent chats do not overwrite each other. The file and
// its folder are readable by the owner only. Errors are ignored.
void append_line_history(const std::filesystem::path& path, std::string_view line);

// Chat input: messages of one or more lines, and commands.
//
//   first line \            a backslash continues the message on the next line
//   """ or """text          starts a block that ends with a line ending in """
//   /save FILE              a command
//   //etc                   a message that starts with a slash
struct Message {
  LineEnd end = LineEnd::closed;
  std::string text = {};
  bool quoted = false;  // was between """: not a command, not to be unescaped

  std::string as_typed() const { return quoted ? "\"\"\"" + text + "\"\"\"" : text; }
};

// Reads lines until the message is complete or the input ends.
Message read_message(LineEditor& lines, std::string_view prompt);

struct ChatCommand {
  std::string name;      // "save"
  std::string argument;  // the rest of the line, trimmed
};

// Returns nullopt if the text is a message.
std::optional<ChatCommand> parse_chat_command(std::string_view text);
// Removes the first of two leading slashes. A message of several lines is never a command and is
// unchanged.
std::string_view unescaped_message(std::string_view text);

}  // namespace thimble
