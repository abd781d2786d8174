// Lines that somebody types: with libedit on a terminal, where it was there at build time; else as they come.
//
//   auto lines = make_line_editor({.history = state_folder() / "chat_history"}, &interrupt);
//   while (const auto line = lines->read("> "); line.end == LineEnd::line) ...
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "base/interrupt.h"

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

}  // namespace thimble
