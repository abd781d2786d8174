// Ctrl-C: the first SIGINT, SIGTERM or SIGHUP asks, a second one stops at once (exit code 130), unless it is a SIGHUP: of a
// line that was lost both the shell and the kernel tell.
//
//   Interrupt interrupt;                    // installs the handlers; restores the old ones when it goes
//   while (work_left && !interrupt.asked()) step();
//
// Where a program outlives what Ctrl-C stops, as a chat does its answers: Interrupt::Scope::task. Then SIGINT asks, as
// often as it comes, and forget() makes it new; the others stay what they were.
//
// A signal that is ignored stays so: whoever started us in the background of a script wants it that way.
//
// Long loops of the library take a `const Interrupt*` (nullptr: not interruptible) and call throw_if_asked.
#pragma once

#include <csignal>

#include "base/error.h"

namespace thimble {

inline constexpr int kExitInterrupted = 130;

// Thrown by throw_if_asked after everything worth saving was saved; the binary exits with 130.
class Interrupted : public Error {
 public:
  Interrupted() : Error("interrupted") {}
};

class Interrupt {
 public:
  enum class Scope { program, task };
  explicit Interrupt(Scope scope = Scope::program);
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  bool asked() const;
  void forget();
  void throw_if_asked() const;
};

// Threads that are made while it lives take no signals but their own faults: those go to the thread that makes them.
//
//   const SignalsHeld held;
//   workers.emplace_back(...);
class SignalsHeld {
 public:
  SignalsHeld() {
    sigset_t held;
    sigfillset(&held);
    // What a thread itself does wrong stays its own.
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP}) sigdelset(&held, fault);
    pthread_sigmask(SIG_SETMASK, &held, &before_);
  }
  ~SignalsHeld() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsHeld(const SignalsHeld&) = delete;
  SignalsHeld& operator=(const SignalsHeld&) = delete;

 private:
  sigset_t before_{};
};

// SIGUSR1: "save now". The loop finishes its step, writes a checkpoint and goes on.
//
//   SaveSignal save;                 // installs the handler; the old one comes back when it goes
//   if (save.taken()) checkpoint();  // once per signal

class SaveSignal {
 public:
  SaveSignal();
  ~SaveSignal();
  SaveSignal(const SaveSignal&) = delete;
  SaveSignal& operator=(const SaveSignal&) = delete;

  bool taken() const;  // was there a signal since the last call?
};

}  // namespace thimble
