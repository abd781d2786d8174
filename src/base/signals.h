// Ctrl-C: the first SIGINT, SIGTERM or SIGHUP requests a stop. A second SIGINT or SIGTERM exits
// immediately with code 130. A second SIGHUP does not, because after a lost connection both the
// shell and the kernel send one.
//
//   Interrupt interrupt;     // installs the handlers; the destructor restores the old ones
//   while (work_left && !interrupt.requested()) step();
//
// Interrupt::Scope::task is for programs that continue after Ctrl-C, such as a chat, where it stops
// only the current answer. It handles SIGINT alone, which may arrive any number of times; forget()
// clears the request.
//
// Signals that are already ignored stay ignored: shell scripts start background jobs with SIGINT
// ignored.
//
// Long loops in the library take a `const Interrupt*` (nullptr: not interruptible) and call
// throw_if_interrupted.
#pragma once

#include <csignal>

#include "base/error.h"

namespace thimble {

inline constexpr int kExitInterrupted = 130;

// Thrown by throw_if_interrupted. The binary exits with code 130.
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

  bool requested() const;
  void forget();

  // As a signal does. May be called by any thread and by signal handlers.
  static void request();
  // From now on no signal ends the process: it belongs to another program.
  static void never_exit();

  void throw_if_interrupted() const;
};

// Threads created during its lifetime block all signals except those raised by faults, so the
// creating thread receives the others.
//
//   const SignalMaskScope held;
//   workers.emplace_back(...);
class SignalMaskScope {
 public:
  SignalMaskScope() {
    sigset_t held;
    sigfillset(&held);
    // A thread must receive the signals that its own faults raise.
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP}) sigdelset(&held, fault);
    pthread_sigmask(SIG_SETMASK, &held, &before_);
  }
  ~SignalMaskScope() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalMaskScope(const SignalMaskScope&) = delete;
  SignalMaskScope& operator=(const SignalMaskScope&) = delete;

 private:
  sigset_t before_{};
};

// SIGUSR1: "save now". The training loop finishes its step, writes a checkpoint and continues.
//
//   SaveSignal save;                 // installs the handler; the destructor restores the old one
//   if (save.taken()) checkpoint();  // once per signal

class SaveSignal {
 public:
  SaveSignal();
  ~SaveSignal();
  SaveSignal(const SaveSignal&) = delete;
  SaveSignal& operator=(const SaveSignal&) = delete;

  bool taken() const;  // whether a signal arrived since the last call

  static void request();  // as the signal does; may be called by any thread
};

}  // namespace thimble
