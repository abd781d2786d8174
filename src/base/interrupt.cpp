#include "base/interrupt.h"

#include <unistd.h>

#include <array>
#include <csignal>

namespace thimble {

namespace {

// A signal handler can reach nothing but static storage: the one exception to "no globals".
volatile std::sig_atomic_t signals_seen = 0;
std::array<struct sigaction, 2> previous;
constexpr std::array kSignals = {SIGINT, SIGTERM};
constexpr int kExitInterrupted = 130;

void on_signal(int) {
  if (signals_seen) _exit(kExitInterrupted);
  signals_seen = 1;
}

}  // namespace

Interrupt::Interrupt() {
  signals_seen = 0;
  struct sigaction action {};
  action.sa_handler = on_signal;
  for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &action, &previous[i]);
}

Interrupt::~Interrupt() {
  for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &previous[i], nullptr);
}

bool Interrupt::asked() const {
  return signals_seen != 0;
}

void Interrupt::throw_if_asked() const {
  if (asked()) throw Interrupted();
}

}  // namespace thimble
