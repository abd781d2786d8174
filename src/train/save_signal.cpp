#include "train/save_signal.h"

#include <csignal>

namespace thimble {

namespace {

// A signal handler can reach nothing but static storage, as in base/interrupt.cpp.
volatile std::sig_atomic_t signal_seen = 0;
struct sigaction previous;

void on_signal(int) {
  signal_seen = 1;
}

}  // namespace

SaveSignal::SaveSignal() {
  signal_seen = 0;
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;  // reads and writes under way go on
  sigaction(SIGUSR1, &action, &previous);
}

SaveSignal::~SaveSignal() {
  sigaction(SIGUSR1, &previous, nullptr);
}

bool SaveSignal::taken() const {
  if (!signal_seen) return false;
  signal_seen = 0;
  return true;
}

}  // namespace thimble
