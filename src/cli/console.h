// Where a command prints: results to stdout, where a failed write is an error; everything else to stderr.
#pragma once

#include <string>
#include <string_view>

#include "base/log.h"
#include "base/progress.h"

namespace thimble {

class Json;

// Whoever read our output has stopped (`thimble ... | head`): no reason to complain.
struct BrokenPipe {};

class Console {
 public:
  Console(bool json, bool quiet);

  bool json() const { return json_; }               // --json: print one object, by print_json
  void print(std::string_view text) const;          // to stdout, at once; throws Error or BrokenPipe
  void print_foreign(std::string_view text) const;  // what we did not write: terminal_safe where there is one
  void print_json(const Json& object) const;        // indented, with a closing newline
  void tell(std::string_view text) const;           // a line to stderr, also under --quiet: it was asked for
  const Log& log() const { return log_; }           // stderr; only warnings under --quiet
  ProgressOutput progress() const;                  // stderr; nothing under --quiet

 private:
  bool json_, quiet_;
  Log log_;
};

// Text that a model wrote, for a terminal: control characters but line ends and tabs become U+FFFD, so that nobody is
// sent escape sequences. `text` holds whole characters.
std::string terminal_safe(std::string_view text);
std::string safe_for(int file_descriptor, std::string_view text);  // that, if it is one; else as it is

// May this stream be coloured? A terminal, not a dumb one, and NO_COLOR unset.
bool wants_colour(int file_descriptor);

// How wide a page or table for stdout may be: COLUMNS, else what the terminal says, else `otherwise` (0: no limit).
std::size_t page_width(std::size_t otherwise);

// Makes sure that descriptors 0 to 2 exist: otherwise the next file opened (a checkpoint, say) would become
// stdout and results would be written into it.
void keep_standard_streams_open();

}  // namespace thimble
