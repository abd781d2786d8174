#include "base/signals.h"

#include <unistd.h>

#include <array>
#include <csignal>

namespace thimble {

namespace {

// A signal handler can access only static storage.
volatile std::sig_atomic_t signals_seen = 0;
volatile std::sig_atomic_t second_exits = 1;
volatile std::sig_atomic_t may_exit = 1;
constexpr std::array kSignals = {SIGINT, SIGTERM, SIGHUP};
std::array<struct sigaction, kSignals.size()> previous;

void on_signal(int signal) {
  if (signals_seen && second_exits && may_exit && signal != SIGHUP) _exit(kExitInterrupted);
  signals_seen = 1;
}

}  // namespace

Interrupt::Interrupt(Scope scope) {
  signals_seen = 0;
  second_exits = scope == Scope::program;
  struct sigaction action {};
  action.sa_handler = on_signal;
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    sigaction(kSignals[i], nullptr, &previous[i]);
    const bool ours = scope == Scope::program || kSignals[i] == SIGINT;
    const bool ignored = previous[i].sa_handler == SIG_IGN;
    if (ours && !ignored) sigaction(kSignals[i], &action, nullptr);
  }
}

Interrupt::~Interrupt() {
  for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &previous[i], nullptr);
}

bool Interrupt::requested() const {
  return signals_seen != 0;
}

void Interrupt::request() {
  signals_seen = 1;
}

void Interrupt::never_exit() {
  may_exit = 0;
}

void Interrupt::forget() {
  signals_seen = 0;
}

void Interrupt::throw_if_interrupted() const {
  if (requested()) throw Interrupted();
}

namespace {

volatile std::sig_atomic_t save_requested = 0;
struct sigaction before_save;

void on_save_signal(int) {
  save_requested = 1;
}

}  // namespace

SaveSignal::SaveSignal() {
  save_requested = 0;
  struct sigaction action {};
  action.sa_handler = on_save_signal;
  action.sa_flags = SA_RESTART;  // do not interrupt system calls
  sigaction(SIGUSR1, &action, &before_save);
}

SaveSignal::~SaveSignal() {
  sigaction(SIGUSR1, &before_save, nullptr);
}

bool SaveSignal::taken() const {
  if (!save_requested) return false;
  save_requested = 0;
  return true;
}

void SaveSignal::request() {
  save_requested = 1;
}

}  // namespace thimble
