// Output of commands: results to stdout, where a failed write is an error; everything else to
// stderr.
#pragma once

#include <string>
#include <string_view>

#include "base/log.h"
#include "base/progress.h"

namespace thimble {

class Json;
class TrainObserver;

// Thrown when the reader of stdout has closed it (`thimble ... | head`). Not an error.
struct BrokenPipe {};

// Where the output of a command goes that runs inside another program (src/c).
struct Capture {
  std::string output;  // instead of stdout
  Log log;             // instead of stderr
  TrainObserver* observer = nullptr;
};

class Console {
 public:
  // `capture`: null for stdout and stderr.
  Console(bool json, bool quiet, Capture* capture = nullptr);

  bool json() const { return json_; }       // --json: print one object with print_json()
  void print(std::string_view text) const;  // to stdout, unbuffered; throws Error or BrokenPipe
  void print_foreign(
      std::string_view text) const;           // text from a model or a file: escaped if stdout is a terminal
  void print_json(const Json& object) const;  // indented, with a closing newline
  void tell(std::string_view text) const;     // a line to stderr, even with --quiet
  const Log& log() const { return log_; }     // to stderr; only warnings with --quiet
  ProgressOutput progress() const;            // to stderr; nothing with --quiet
  TrainObserver* observer() const { return capture_ ? capture_->observer : nullptr; }

 private:
  bool json_, quiet_;
  Capture* capture_;
  Log log_;
};

// Replaces control characters other than newline and tab with U+FFFD, so that text from a model or
// a file cannot send escape sequences to the terminal. `text` must not end inside a character.
std::string terminal_safe(std::string_view text);
std::string safe_for(int file_descriptor, std::string_view text);  // terminal_safe() if it is a terminal

// Whether to print colors: to a terminal, if TERM is not "dumb" and NO_COLOR is unset.
bool wants_colour(int file_descriptor);

// Width of text on stdout: $COLUMNS (at most 1000), else the terminal's width, else `otherwise`.
// 0 is unlimited.
std::size_t page_width(std::size_t otherwise);

// Opens descriptors 0 to 2 if they are closed. Otherwise the next file to be opened, such as a
// checkpoint, would become stdout and results would be written into it.
void keep_standard_streams_open();

}  // namespace thimble
