// Ctrl-C: the first SIGINT or SIGTERM asks, a second one stops at once (exit code 130).
//
//   Interrupt interrupt;                    // installs the handlers; restores the old ones when it goes
//   while (work_left && !interrupt.asked()) step();
//
// Long loops of the library take a `const Interrupt*` (nullptr: not interruptible) and call throw_if_asked.
#pragma once

#include "base/error.h"

namespace thimble {

// Thrown by throw_if_asked after everything worth saving was saved; the binary exits with 130.
class Interrupted : public Error {
 public:
  Interrupted() : Error("interrupted") {}
};

class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  bool asked() const;
  void throw_if_asked() const;
};

}  // namespace thimble
